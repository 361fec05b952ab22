// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"time"
)

// The budgets of logins with unknown tokens. Each costs the API server a TokenReview.
// A successful login is charged one tenth.
const (
	loginsBurst     = 10
	loginsPerSecond = 0.2
	loginsSources   = 4096
	allLoginsBurst  = 100
	allLoginsPerSec = 10
	successRefund   = 0.9
)

// The budgets of requests.
const (
	requestsBurst     = 200 // of one user
	requestsPerSecond = 40  // an open page sends 7
	requestsUsers     = 4096
	allRequestsBurst  = 1000 // without authentication, of all together
	allRequestsPerSec = 500
)

// bucket is a token bucket.
type bucket struct {
	key  string
	left float64
	at   time.Time
}

// buckets are token buckets by key. If there are too many, a new one replaces the
// least recently used. A key without a bucket has a full one.
type buckets struct {
	burst, perSecond float64
	size             int

	mu    sync.Mutex
	byKey map[string]*list.Element // of *bucket
	order *list.List               // the most recently used first
}

func newBuckets(burst, perSecond float64, size int) *buckets {
	return &buckets{burst: burst, perSecond: perSecond, size: size, byKey: map[string]*list.Element{}, order: list.New()}
}

// bucket returns the key's bucket, refilled up to now. The caller holds b.mu.
func (b *buckets) bucket(key string, now time.Time) *bucket {
	e := b.byKey[key]
	if e == nil {
		if len(b.byKey) >= b.size {
			oldest := b.order.Back()
			delete(b.byKey, oldest.Value.(*bucket).key)
			b.order.Remove(oldest)
		}
		e = b.order.PushFront(&bucket{key: key, left: b.burst, at: now})
		b.byKey[key] = e
	}
	b.order.MoveToFront(e)
	x := e.Value.(*bucket)
	if d := now.Sub(x.at); d > 0 {
		x.left, x.at = min(b.burst, x.left+d.Seconds()*b.perSecond), now
	}
	return x
}

// take takes one unit from the key's bucket. If there is none, it returns the time
// until there will be one.
func (b *buckets) take(key string, now time.Time) (ok bool, retry time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.bucket(key, now)
	if x.left < 1 {
		return false, time.Duration((1 - x.left) / b.perSecond * float64(time.Second))
	}
	x.left--
	return true, 0
}

// put returns n units to the key's bucket.
func (b *buckets) put(key string, n float64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.bucket(key, now)
	x.left = min(b.burst, x.left+n)
}

// used returns the units of the key's bucket that are taken and not refilled yet.
func (b *buckets) used(key string, now time.Time) float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byKey[key] == nil {
		return 0
	}
	return b.burst - b.bucket(key, now).left
}

// logins limits the TokenReviews, by source and in total. Sources with recent failures
// have a total of their own. So guesses of tokens do not use the budget for other
// users' first logins.
type logins struct{ sources, totals *buckets }

func newLogins() *logins {
	return &logins{
		sources: newBuckets(loginsBurst, loginsPerSecond, loginsSources),
		totals:  newBuckets(allLoginsBurst, allLoginsPerSec, 2),
	}
}

// login is an attempt that has been charged.
type login struct {
	l             *logins
	source, total string
}

// begin charges an attempt. If the budget of the source or the total is used up, it
// returns nil and the time until the next attempt.
func (l *logins) begin(source string, now time.Time) (*login, time.Duration) {
	total := "failed"
	if l.sources.used(source, now) < 2 { // at most one failure, or many successes
		total = "new"
	}
	if ok, retry := l.sources.take(source, now); !ok {
		return nil, retry
	}
	if ok, retry := l.totals.take(total, now); !ok {
		l.sources.put(source, 1, now)
		return nil, retry
	}
	return &login{l, source, total}, 0
}

// refund returns a share of the attempt's charge. It does nothing for nil, an attempt
// without a charge.
func (a *login) refund(share float64, now time.Time) {
	if a == nil {
		return
	}
	a.l.sources.put(a.source, share, now)
	a.l.totals.put(a.total, share, now)
}

// sourceOf returns the address of a request's client. An IPv6 /64 is one source.
func sourceOf(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if ip = ip.Unmap().WithZone(""); ip.Is6() {
		if p, err := ip.Prefix(64); err == nil {
			return p.String()
		}
	}
	return ip.String()
}

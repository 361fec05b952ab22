// SPDX-License-Identifier: Apache-2.0

package bearer

import (
	"container/list"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"
)

// bucket is a token bucket.
type bucket struct {
	key  string
	left float64
	at   time.Time
}

// Buckets are token buckets by key. If there are too many, a new one replaces the
// least recently used. A key without a bucket has a full one.
type Buckets struct {
	burst, perSecond float64
	size             int

	mu    sync.Mutex
	byKey map[string]*list.Element // of *bucket
	order *list.List               // the most recently used first
}

// NewBuckets returns buckets of burst units that refill by perSecond, at most size at a time.
func NewBuckets(burst, perSecond float64, size int) *Buckets {
	return &Buckets{burst: burst, perSecond: perSecond, size: size, byKey: map[string]*list.Element{}, order: list.New()}
}

// bucket returns the key's bucket, refilled up to now. The caller holds b.mu.
func (b *Buckets) bucket(key string, now time.Time) *bucket {
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

// Take takes one unit from the key's bucket. If there is none, it returns the time
// until there will be one.
func (b *Buckets) Take(key string, now time.Time) (ok bool, retry time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.bucket(key, now)
	if x.left < 1 {
		return false, max(1, time.Duration((1-x.left)/b.perSecond*float64(time.Second)))
	}
	x.left--
	return true, 0
}

// put returns n units to the key's bucket.
func (b *Buckets) put(key string, n float64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.bucket(key, now)
	x.left = min(b.burst, x.left+n)
}

// used returns the units of the key's bucket that are taken and not refilled yet.
func (b *Buckets) used(key string, now time.Time) float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byKey[key] == nil {
		return 0
	}
	return b.burst - b.bucket(key, now).left
}

// LoginLimits are the budgets of a Logins.
type LoginLimits struct {
	// Burst and PerSecond are of one source, of which at most Sources are known at a time.
	Burst, PerSecond float64
	Sources          int
	// TotalBurst and TotalPerSecond are of all sources of one class together.
	TotalBurst, TotalPerSecond float64
}

// Logins limits the reviews of unknown tokens, by source and in total. There is a total
// for each of three classes of sources: those whose token was accepted recently, those
// that are new, and those with recent failures. So guesses of tokens do not use the
// budget for other users' logins.
type Logins struct {
	sources, totals *Buckets

	mu    sync.Mutex
	known map[string]time.Time // sources, with the time of the last accepted token
	size  int
}

// knownFor is how long a source is known after a token of it was accepted. The kubelet
// renews a pod's token at the latest after 24 hours, and most within one.
const knownFor = 2 * time.Hour

// NewLogins returns the budgets.
func NewLogins(l LoginLimits) *Logins {
	return &Logins{
		sources: NewBuckets(l.Burst, l.PerSecond, l.Sources), totals: NewBuckets(l.TotalBurst, l.TotalPerSecond, 3),
		known: map[string]time.Time{}, size: l.Sources,
	}
}

// successRefund is the share of its charge that a successful login gets back.
const successRefund = 0.9

// Login is an attempt that has been charged. nil is one without a charge.
type Login struct {
	l             *Logins
	source, total string
}

// Begin charges an attempt. If the budget of the source or the total is used up, it
// returns nil and the time until the next attempt.
func (l *Logins) Begin(source string, now time.Time) (*Login, time.Duration) {
	total := "failed"
	switch {
	case l.isKnown(source, now):
		total = "known"
	case l.sources.used(source, now) < 2: // at most one failure, or many successes
		total = "new"
	}
	if ok, retry := l.sources.Take(source, now); !ok {
		return nil, retry
	}
	if ok, retry := l.totals.Take(total, now); !ok {
		l.sources.put(source, 1, now)
		return nil, retry
	}
	return &Login{l, source, total}, 0
}

func (l *Logins) isKnown(source string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.known[source]
	return ok && now.Sub(at) < knownFor
}

// Accepted marks a source as known: a token of it was accepted.
func (l *Logins) Accepted(source string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.known) >= l.size {
		maps.DeleteFunc(l.known, func(_ string, at time.Time) bool { return now.Sub(at) >= knownFor })
	}
	if _, ok := l.known[source]; ok || len(l.known) < l.size {
		l.known[source] = now
	}
}

// Accepted returns most of the charge, and marks the source as known.
func (a *Login) Accepted(now time.Time) {
	if a == nil {
		return
	}
	a.l.sources.put(a.source, successRefund, now)
	a.l.totals.put(a.total, successRefund, now)
	a.l.Accepted(a.source, now)
}

// Refund returns the charge of an attempt without a result.
func (a *Login) Refund(now time.Time) {
	if a != nil {
		a.l.totals.put(a.total, 1, now)
		a.Unanswered(now)
	}
}

// Unanswered returns the source's charge for an attempt that the API server did not
// answer. The total stays charged: an API server that fails is asked no more often.
func (a *Login) Unanswered(now time.Time) {
	if a != nil {
		a.l.sources.put(a.source, 1, now)
	}
}

// SourceOf returns the address of a request's client. An IPv6 /64 is one source.
func SourceOf(remote string) string {
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

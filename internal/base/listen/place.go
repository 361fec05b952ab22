// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"context"
	"net"
	"net/http"
	"slices"
	"time"
)

const (
	// placesPerSource is how many places one source holds at a time.
	placesPerSource = 2
	// grace is how long a request holds its place from the first byte of its answer on, whoever waits. A page is built
	// before, and written within a few milliseconds.
	grace = 100 * time.Millisecond
	// maxWait is how long a request waits for a place.
	maxWait = 2 * time.Second
)

// holder is a request that holds a place, or waits for one.
type holder struct {
	client
	conn     *connection // nil: the connection is not the room's
	standing standing
	since    time.Time     // of the place
	owed     time.Duration // the connection's debt then
	in       chan struct{} // closed with the place
	lost     bool          // the place is another's
}

// reading is how long the reader has had for its page: from the first byte on, since before it is the server that takes
// its time. A server that takes maxWait counts as well, so that nobody holds a place for longer than others wait.
func (x *holder) reading(now time.Time) time.Duration {
	if x.conn == nil {
		return now.Sub(x.since)
	}
	if at := x.conn.begun.Load(); at != 0 {
		return now.Sub(time.Unix(0, at))
	}
	return now.Sub(x.since) - maxWait + grace
}

type connKey struct{}

// withConn is http.Server's ConnContext: it gives a request its connection.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok { // of TLS
		conn = t.NetConn()
	}
	c, _ := conn.(*connection)
	return context.WithValue(ctx, connKey{}, c)
}

// Place returns h within the room's places. A source holds two of them. Half of the places are for clients that have
// lately read a page fast, and an eighth, one at least, is open to clients that were too slow. If no place is free, a
// request whose answer began 100 ms ago, or that has held its place for 2 s, loses it and its connection; if there is
// none, the request waits. A request that has waited for 2 s gets 503.
func (r *Room) Place(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// Else the first write of the answer waits for a body that nobody reads, for as long as its sender likes.
		_ = http.NewResponseController(w).EnableFullDuplex()
		x := r.ask(req)
		timeout := time.NewTimer(maxWait)
		defer timeout.Stop()
		select {
		case <-x.in:
		case <-timeout.C:
		case <-req.Context().Done():
		}
		if !r.holds(x) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many requests are in progress; slow readers lose their place", http.StatusServiceUnavailable)
			return
		}
		defer r.leave(x)
		h.ServeHTTP(w, req)
	})
}

// ask requests a place.
func (r *Room) ask(req *http.Request) *holder {
	x := &holder{client: clientOf(req.RemoteAddr), in: make(chan struct{})}
	if c, _ := req.Context().Value(connKey{}).(*connection); c != nil {
		x.client, x.conn = c.client, c
	}
	r.mu.Lock()
	x.standing = r.known.of(x.client, time.Now())
	r.waiting = append(r.waiting, x)
	victims := r.grant()
	r.mu.Unlock()
	abort(victims)
	return x
}

// holds reports whether x has a place, and ends its wait.
func (r *Room) holds(x *holder) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = slices.DeleteFunc(r.waiting, func(y *holder) bool { return y == x })
	return slices.Contains(r.holders, x) || x.lost
}

func (r *Room) leave(x *holder) {
	now := time.Now()
	r.mu.Lock()
	if !x.lost {
		r.remove(x)
		if x.conn == nil || x.conn.debt()-x.owed < grace {
			r.known.wasFast(x.client, now)
		}
	}
	victims := r.grant()
	r.mu.Unlock()
	abort(victims)
}

// tooSlow records that the reader of a connection missed a deadline.
func (r *Room) tooSlow(c *connection) {
	r.released.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known.wasSlow(c.client, true, time.Now())
}

// grant gives places to the requests that wait, those of the highest standing first. It
// returns the connections that lose theirs. r.mu is held.
func (r *Room) grant() (victims []*connection) {
	now := time.Now()
	for s := numStandings - 1; s >= 0; s-- {
		r.waiting = slices.DeleteFunc(r.waiting, func(x *holder) bool {
			if x.standing != s {
				return false
			}
			in, victim := r.admit(x, now)
			if victim != nil && victim.conn != nil {
				victims = append(victims, victim.conn)
			}
			return in
		})
	}
	r.retryLater(now)
	return victims
}

// admit gives x a place if it can have one, maybe that of victim. r.mu is held.
func (r *Room) admit(x *holder, now time.Time) (in bool, victim *holder) {
	if full := r.inTheWay(x); full != nil {
		if victim = slowest(full, x.standing, now); victim == nil {
			return false, nil
		}
		r.remove(victim)
		victim.lost = true
		r.released.Add(1)
		if victim.conn != nil && victim.conn.begun.Load() != 0 {
			r.known.wasSlow(victim.client, false, now)
		}
		if r.inTheWay(x) != nil { // a second limit holds; the next call continues
			return false, victim
		}
	}
	x.since = now
	r.holders = append(r.holders, x)
	if x.conn != nil {
		x.conn.places++
		x.conn.begun.Store(0)
		x.owed = x.conn.debt()
	}
	close(x.in)
	return true, victim
}

// inTheWay returns the requests of which one must leave before x can have a place; nil: none. r.mu is held.
func (r *Room) inTheWay(x *holder) []*holder {
	unproven := r.limits.Places - r.limits.Places/2
	for _, limit := range []struct {
		most   int
		counts func(y *holder) bool
	}{
		{placesPerSource, func(y *holder) bool { return sameShare(x, y) }},
		{max(1, r.limits.Places/8), func(y *holder) bool { return x.standing == slow && y.standing == slow }},
		{unproven, func(y *holder) bool { return x.standing <= fresh && y.standing <= fresh }},
		{r.limits.Places, func(*holder) bool { return true }},
	} {
		var full []*holder
		for _, y := range r.holders {
			if limit.counts(y) {
				full = append(full, y)
			}
		}
		if len(full) >= limit.most {
			return full
		}
	}
	return nil
}

// sameShare reports whether two requests use the places of one source. A proven address has
// its own, so that the other hosts of its network cannot use them.
func sameShare(x, y *holder) bool {
	if x.standing >= proven || y.standing >= proven {
		return x.addr == y.addr
	}
	return x.source == y.source
}

// slowest returns the request of at most this standing that has had its place the longest,
// and for longer than it needs; nil: there is none.
func slowest(of []*holder, most standing, now time.Time) (out *holder) {
	for _, y := range of { // oldest first
		if y.standing <= most && y.reading(now) >= grace && (out == nil || y.standing < out.standing) {
			out = y
		}
	}
	return out
}

// retryLater calls grant when the next request has held its place for long enough. r.mu is held.
func (r *Room) retryLater(now time.Time) {
	if len(r.waiting) == 0 {
		return
	}
	wait := grace
	for _, y := range r.holders {
		if left := grace - y.reading(now); left > 0 {
			wait = min(wait, left)
		}
	}
	if r.retry != nil {
		r.retry.Stop()
	}
	r.retry = time.AfterFunc(wait, func() {
		r.mu.Lock()
		victims := r.grant()
		r.mu.Unlock()
		abort(victims)
	})
}

// remove takes the place of a request. r.mu is held.
func (r *Room) remove(x *holder) {
	r.holders = slices.DeleteFunc(r.holders, func(y *holder) bool { return y == x })
	if x.conn != nil {
		x.conn.places--
	}
}

func abort(conns []*connection) {
	for _, c := range conns {
		c.abort()
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package listen bounds what the clients of a server can hold: connections, places for
// requests, the time of writes, and the kernel's memory.
package listen

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Limits bound the clients of a server. Zero is no limit, but for Connections.
type Limits struct {
	// Connections is the number of open connections.
	Connections int
	// PerSource is the number of open connections of one source: an IPv4 address, or an IPv6 network of 64 bits.
	PerSource int
	// Places is the number of requests that the handlers of Place handle at a time.
	Places int
	// Slack is how long the writes of a connection may be blocked, plus one second for each MiB that was written.
	Slack time.Duration
	// Buffer is the kernel's buffer of a connection in each direction, in bytes; 0: 256 KiB. The kernel's own limit
	// (net.ipv4.tcp_rmem and tcp_wmem) is up to 32 MiB, so that a few hundred clients could use the memory for TCP of a
	// whole node (tcp_mem).
	Buffer int
}

// Room holds the connections and requests of its listeners within limits. It always accepts a connection, and closes
// another one for it. Nobody is kept out by connections that do nothing, nor by readers that are slow.
type Room struct {
	limits Limits

	mu       sync.Mutex
	open     int
	serial   uint64                         // of the last connection
	sources  map[netip.Prefix][]*connection // oldest first
	known    standings
	closed   atomic.Uint64 // connections, to make room
	holders  []*holder     // of places, oldest first
	waiting  []*holder     // for a place, oldest first
	retry    *time.Timer   // of the requests that wait
	released atomic.Uint64 // places that slow readers lost
}

// New returns a room.
func New(l Limits) *Room {
	if l.Places <= 0 || l.Places > l.Connections {
		l.Places = l.Connections
	}
	l.Buffer = cmp.Or(l.Buffer, 256<<10)
	return &Room{limits: l, sources: map[netip.Prefix][]*connection{}, known: newStandings()}
}

// Of returns l with the limits.
func (r *Room) Of(l net.Listener) net.Listener { return &listener{l, r} }

// Open returns the number of open connections.
func (r *Room) Open() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open
}

// Closed returns the number of connections that were closed to make room.
func (r *Room) Closed() uint64 { return r.closed.Load() }

// Lost returns the number of requests that lost their place because their reader was slow.
func (r *Room) Lost() uint64 { return r.released.Load() }

// minLife is how long a connection may be inactive before it is closed for another one: enough to
// send a request. Meanwhile a new connection waits.
const minLife = 50 * time.Millisecond

type listener struct {
	net.Listener
	room *Room
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.room.add(raw), nil
}

// add counts a connection, and closes another one if there are too many.
func (r *Room) add(raw net.Conn) net.Conn {
	c := &connection{Conn: raw, room: r, client: clientOf(raw.RemoteAddr().String())}
	c.local = c.addr.IsValid() && (c.addr.IsLoopback() || c.addr == clientOf(raw.LocalAddr().String()).addr)
	if t, ok := raw.(*net.TCPConn); ok {
		_ = t.SetReadBuffer(r.limits.Buffer) // without it, the kernel's own limit holds
		_ = t.SetWriteBuffer(r.limits.Buffer)
	}
	for {
		c.active.Store(time.Now().UnixNano())
		victim, wait := r.enter(c)
		if wait > 0 {
			<-time.After(wait) // at most minLife
			continue
		}
		if victim != nil {
			r.closed.Add(1)
			victim.abort()
		}
		return c
	}
}

// enter adds a connection, and returns the one to close for it. If that may not be closed yet,
// it says how long to wait, and adds nothing.
func (r *Room) enter(c *connection) (victim *connection, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	own := append(slices.Clip(r.sources[c.source]), c)
	now := time.Now()
	switch {
	case r.limits.PerSource > 0 && len(own) > r.limits.PerSource:
		victim = r.worst(own)
	case r.open >= r.limits.Connections && r.limits.PerSource > 0:
		victim = r.victim()
		inactive := now.Sub(time.Unix(0, victim.active.Load()))
		switch known := r.known.of(victim.client, now); {
		case inactive < minLife && r.known.of(c.client, now) == slow:
			victim = c
		case inactive < minLife:
			return nil, minLife - inactive
		case known < proven || !victim.served.Load():
			r.known.wasSlow(victim.client, false, now)
		}
	}
	r.sources[c.source] = own
	r.open++
	r.serial++
	c.serial = r.serial
	if victim == nil && r.open > r.limits.Connections {
		victim = r.victim()
	}
	return victim, 0
}

// victim returns the connection to close for a new one. Without PerSource it is the oldest of the
// source with the most. With it, clients that have read pages fast keep half of the connections,
// and others the other half, so that neither keeps the other out. r.mu is held.
func (r *Room) victim() *connection {
	var most, unproven, others []*connection
	now := time.Now()
	for _, conns := range r.sources {
		if len(conns) > len(most) {
			most = conns
		}
		if r.limits.PerSource == 0 {
			continue
		}
		for _, c := range conns {
			if r.known.of(c.client, now) <= fresh {
				unproven = append(unproven, c)
			} else {
				others = append(others, c)
			}
		}
	}
	switch {
	case r.limits.PerSource == 0:
		return most[0]
	case len(unproven) > r.limits.Connections/2:
		return r.worst(unproven)
	}
	return r.worst(others)
}

// worst returns the connection that does the least: outside of a place, of the client with the
// lowest standing, and inactive for the longest time. r.mu is held.
func (r *Room) worst(conns []*connection) *connection {
	now := time.Now()
	type key struct {
		inPlace bool
		standing
		active int64
		serial uint64
	}
	less := func(a, b key) bool {
		if a.inPlace != b.inPlace {
			return b.inPlace
		}
		return cmp.Or(cmp.Compare(a.standing, b.standing), cmp.Compare(a.active, b.active), cmp.Compare(a.serial, b.serial)) < 0
	}
	var worst *connection
	var is key
	for _, c := range conns {
		k := key{c.places > 0, r.known.of(c.client, now), c.active.Load(), c.serial}
		if worst == nil || less(k, is) {
			worst, is = c, k
		}
	}
	return worst
}

func (r *Room) forget(c *connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	conns := r.sources[c.source]
	for i, x := range conns {
		if x != c {
			continue
		}
		r.open--
		if conns = append(conns[:i:i], conns[i+1:]...); len(conns) == 0 {
			delete(r.sources, c.source)
		} else {
			r.sources[c.source] = conns
		}
		return
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package connlimit bounds the open connections of a server.
package connlimit

import (
	"net"
	"sync"
	"sync/atomic"
)

// Limit bounds the open connections of its listeners. Above the limit it closes the
// oldest connection of the client address with the most connections, so that one client
// cannot block the kubelet's probes or other users.
type Limit struct {
	most int

	mu     sync.Mutex
	open   int
	byHost map[string][]*connection // oldest first
	closed atomic.Uint64            // to make room
}

// New returns a limit of most open connections.
func New(most int) *Limit { return &Limit{most: most, byHost: map[string][]*connection{}} }

// Of returns l with the limit.
func (c *Limit) Of(l net.Listener) net.Listener { return &listener{l, c} }

// Open returns the number of open connections.
func (c *Limit) Open() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}

// Closed returns the number of connections that were closed to make room.
func (c *Limit) Closed() uint64 { return c.closed.Load() }

type listener struct {
	net.Listener
	limit *Limit
}

type connection struct {
	net.Conn
	limit *Limit
	host  string
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.limit.add(raw), nil
}

// add counts a connection, and closes one to make room for it if there are too many.
func (c *Limit) add(raw net.Conn) net.Conn {
	host, _, err := net.SplitHostPort(raw.RemoteAddr().String())
	if err != nil {
		host = raw.RemoteAddr().String()
	}
	conn := &connection{Conn: raw, limit: c, host: host}
	c.mu.Lock()
	c.byHost[host] = append(c.byHost[host], conn)
	c.open++
	var victim *connection
	if c.open > c.most {
		victim = c.victim()
	}
	c.mu.Unlock()
	if victim != nil {
		c.closed.Add(1)
		_ = victim.Close() // it may have been closed meanwhile
	}
	return conn
}

// victim returns the oldest connection of the host with the most connections. c.mu is
// held.
func (c *Limit) victim() *connection {
	var most []*connection
	for _, conns := range c.byHost {
		if len(conns) > len(most) {
			most = conns
		}
	}
	return most[0]
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.limit.forget(c)
	return c.Conn.Close()
}

func (c *Limit) forget(conn *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conns := c.byHost[conn.host]
	for i, x := range conns {
		if x != conn {
			continue
		}
		c.open--
		if conns = append(conns[:i:i], conns[i+1:]...); len(conns) == 0 {
			delete(c.byHost, conn.host)
		} else {
			c.byHost[conn.host] = conns
		}
		return
	}
}

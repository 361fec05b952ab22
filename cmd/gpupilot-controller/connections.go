// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"sync"
	"sync/atomic"
)

// maxConnections bounds the open connections of --address. Each open page takes a few,
// Prometheus and the kubelet one each.
const maxConnections = 512

// connections is a listener with a limit of open connections. Above the limit it closes
// the oldest connection of the client address with the most connections, so that one
// client cannot block the kubelet's probes or other users.
type connections struct {
	net.Listener
	most int

	mu     sync.Mutex
	open   int
	byHost map[string][]*connection // oldest first
	closed atomic.Uint64            // to make room
}

type connection struct {
	net.Conn
	all  *connections
	host string
}

func limitConnections(l net.Listener, most int) *connections {
	return &connections{Listener: l, most: most, byHost: map[string][]*connection{}}
}

// Accept implements net.Listener.
func (c *connections) Accept() (net.Conn, error) {
	raw, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(raw.RemoteAddr().String())
	if err != nil {
		host = raw.RemoteAddr().String()
	}
	conn := &connection{Conn: raw, all: c, host: host}
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
	return conn, nil
}

// victim returns the oldest connection of the host with the most connections. c.mu is
// held.
func (c *connections) victim() *connection {
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
	c.all.forget(c)
	return c.Conn.Close()
}

func (c *connections) forget(conn *connection) {
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

// count returns the number of open connections.
func (c *connections) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}

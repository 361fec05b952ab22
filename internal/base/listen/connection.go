// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// bytesPerSecond is the rate that every reader must have. A page of 8 GPUs has about 100 KB.
const bytesPerSecond = 1 << 20

// connection is an accepted connection.
type connection struct {
	net.Conn
	client
	room   *Room
	serial uint64
	places int          // that its requests hold; room.mu guards it
	begun  atomic.Int64 // UnixNano of the first write since its request got a place; 0: none
	active atomic.Int64 // UnixNano of the last write, or of the accept
	served atomic.Bool  // something was written

	mu    sync.Mutex
	owed  time.Duration // how long writes were blocked, beyond what their bytes allow
	until time.Time     // the server's own deadline of writes; zero: none
}

// Write implements net.Conn. It fails if the reader is too slow.
func (c *connection) Write(b []byte) (int, error) {
	c.begun.CompareAndSwap(0, time.Now().UnixNano())
	slack := c.room.limits.Slack
	if slack <= 0 {
		n, err := c.Conn.Write(b)
		c.active.Store(time.Now().UnixNano())
		c.served.Store(true)
		return n, err
	}
	began := time.Now()
	c.mu.Lock()
	deadline, ours := began.Add(slack-c.owed+timeFor(len(b))), true
	if !c.until.IsZero() && c.until.Before(deadline) {
		deadline, ours = c.until, false
	}
	err := c.Conn.SetWriteDeadline(deadline)
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(b)
	ended := time.Now()
	c.active.Store(ended.UnixNano())
	c.served.Store(true)
	c.mu.Lock()
	c.owed = max(0, c.owed+ended.Sub(began)-timeFor(n))
	c.mu.Unlock()
	if ours && errors.Is(err, os.ErrDeadlineExceeded) {
		c.room.tooSlow(c)
		c.abort()
	}
	return n, err
}

// debt is how long the reader has kept writes waiting, beyond what their bytes allow.
func (c *connection) debt() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.owed
}

// timeFor is how long writing n bytes may take.
func timeFor(n int) time.Duration {
	return time.Duration(n) * time.Second / bytesPerSecond
}

// SetWriteDeadline implements net.Conn. The earlier of the deadline and the one of the bytes counts.
func (c *connection) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = t
	return c.Conn.SetWriteDeadline(t)
}

// SetDeadline implements net.Conn.
func (c *connection) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// CloseWrite ends the response, and lets the client read it to its end.
func (c *connection) CloseWrite() error {
	if t, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return t.CloseWrite()
	}
	return nil
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.room.forget(c)
	return c.Conn.Close()
}

// abort closes the connection, and drops what the client has not read.
func (c *connection) abort() {
	if t, ok := c.Conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // else the kernel keeps what is unread for minutes
	}
	_ = c.Close() // it may have been closed meanwhile
}

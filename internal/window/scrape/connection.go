// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// Dialer opens connections; (*net.Dialer).DialContext is one.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

// connection is a target's persistent connection for plain HTTP. It holds no buffer
// and no goroutine while it is idle. net/http's Transport holds 8 KiB of buffers and
// two goroutines per connection: 400 MiB for 10,000 targets.
type connection struct {
	mu     sync.Mutex
	conn   net.Conn        // nil: not open
	raw    syscall.RawConn // of conn, for sendRaw; nil: conn has none
	closed bool            // permanently

	reused bool // conn was open before the current request
}

// exchange sends a request and reads the head of the response. It calls take when
// the response begins to arrive; take returns the buffer for it.
func (c *connection) exchange(ctx context.Context, dial Dialer, r *request, deadline time.Time, take func() *buffer) (*response, error) {
	var b *buffer
	taken := func() *buffer {
		if b == nil {
			b = take()
		}
		return b
	}
	for {
		n, err := c.send(ctx, dial, r, deadline, taken)
		if err != nil && n == 0 && c.reused && !errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
			c.drop() // the server closed the connection after the last response
			continue
		}
		if err != nil {
			c.drop()
			return nil, err
		}
		b.source = source{first: b.first[:n], conn: c.conn}
		b.in.Reset(&b.source)
		if err := b.response.readHead(b.in); err != nil {
			c.drop()
			return nil, err
		}
		return &b.response, nil
	}
}

// send sends the request and waits for the response. It returns the number of the
// response's bytes in the buffer.
func (c *connection) send(ctx context.Context, dial Dialer, r *request, deadline time.Time, take func() *buffer) (n int, err error) {
	if err := c.open(ctx, dial, r.address, deadline); err != nil {
		return 0, err
	}
	if err := c.conn.SetDeadline(deadline); err != nil {
		return 0, err
	}
	if c.isClosed() {
		return 0, net.ErrClosed // shut was called in the meantime
	}
	if c.raw != nil {
		return c.sendRaw(r.wire, take)
	}
	if _, err := c.conn.Write(r.wire); err != nil {
		return 0, err
	}
	if n, err = c.conn.Read(take().first[:]); n > 0 {
		err = nil
	}
	return n, err
}

// open connects, unless the connection is open.
func (c *connection) open(ctx context.Context, dial Dialer, address string, deadline time.Time) error {
	c.reused = c.conn != nil
	if c.reused {
		return nil
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	conn, err := dial(ctx, "tcp", address)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = conn.Close()
		return net.ErrClosed
	}
	c.conn, c.raw = conn, rawConn(conn)
	return nil
}

// done ends the exchange. It closes the connection if it cannot be reused.
func (c *connection) done(b *buffer) {
	if !b.response.reusable() || len(b.source.first) > 0 {
		c.drop()
	}
}

// drop closes the connection. The next request opens a new one.
func (c *connection) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn, c.raw = nil, nil
	}
}

// shut cancels the current request and all later ones. It may be called from any
// goroutine.
func (c *connection) shut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.conn != nil {
		_ = c.conn.Close() // conn stays set: the goroutine of the current request reads it without the lock
	}
}

func (c *connection) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// source reads first the bytes that sendRaw has read, and then the connection.
type source struct {
	first []byte
	conn  io.Reader
}

// Read implements io.Reader.
func (s *source) Read(b []byte) (int, error) {
	if len(s.first) > 0 {
		n := copy(b, s.first)
		s.first = s.first[n:]
		return n, nil
	}
	return s.conn.Read(b)
}

// buffer is the memory for reading a page. A runner takes a buffer from a pool when
// the response arrives, and returns it when the values are stored. The number of
// buffers is therefore the number of concurrent responses, not of targets.
type buffer struct {
	in       *bufio.Reader
	source   source
	response response
	first    [maxFirst]byte // the first bytes of a response
	bytes    [page.MaxLine]byte

	page  page.Buffer
	batch []series.Point
}

// maxFirst is the size of the first read of a response. It holds the whole response
// for 8 GPUs and a few fields.
const maxFirst = 16 << 10

func newBuffer() any { return &buffer{in: bufio.NewReaderSize(nil, maxHeadLine)} }

// take takes a buffer from the pool for the runner's next page.
func (r *runner) take() *buffer {
	b := r.s.buffers.Get().(*buffer)
	r.buffer, r.batch.Points = b, b.batch
	r.page.SetBuffer(&b.page)
	return b
}

// release returns the runner's buffer, if any, to the pool.
func (r *runner) release() {
	b := r.buffer
	if b == nil {
		return
	}
	b.batch, b.source, b.response = page.Kept(r.batch.Points), source{}, response{}
	r.buffer, r.batch.Points = nil, nil
	r.page.ReturnBuffer(&b.page)
	r.s.buffers.Put(b)
}

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

	"github.com/gpupilot/gpupilot/internal/series"
)

// Dialer opens connections; (*net.Dialer).DialContext is one.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

// connection is a target's kept-open connection for plain HTTP. It holds no
// buffer and no goroutine while it waits: net/http's Transport holds 8 KiB of
// buffers and two goroutines, which at 10,000 targets is 400 MiB.
type connection struct {
	mu     sync.Mutex
	conn   net.Conn        // nil: not open
	raw    syscall.RawConn // of conn, for sendRaw; nil: it has none
	closed bool            // for good

	reused bool
}

// exchange sends a request and reads the head of the answer. take is called when
// the answer begins to arrive, and gives the buffer for it.
func (c *connection) exchange(ctx context.Context, dial Dialer, r *request, deadline time.Time, take func() *buffer) (*answer, error) {
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
			c.drop() // the server closed it since the last answer
			continue
		}
		if err != nil {
			c.drop()
			return nil, err
		}
		b.source = source{first: b.first[:n], conn: c.conn}
		b.in.Reset(&b.source)
		if err := b.answer.readHead(b.in); err != nil {
			c.drop()
			return nil, err
		}
		return &b.answer, nil
	}
}

// send sends the request, and waits until n bytes of the answer are in the buffer.
func (c *connection) send(ctx context.Context, dial Dialer, r *request, deadline time.Time, take func() *buffer) (n int, err error) {
	if err := c.open(ctx, dial, r.address, deadline); err != nil {
		return 0, err
	}
	if err := c.conn.SetDeadline(deadline); err != nil {
		return 0, err
	}
	if c.isClosed() {
		return 0, net.ErrClosed // before the deadline was set
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

// done is called when as much of an answer was read as is of use.
func (c *connection) done(b *buffer) {
	if !b.answer.reusable() || len(b.source.first) > 0 {
		c.drop()
	}
}

// drop closes the connection; the next request opens another.
func (c *connection) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn, c.raw = nil, nil
	}
}

// shut ends the request that is under way, and every later one. It may be
// called from any goroutine.
func (c *connection) shut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.conn != nil {
		_ = c.conn.Close() // the field stays: it is its reader's
	}
}

func (c *connection) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// source reads what has arrived already and then the connection.
type source struct {
	first []byte
	conn  io.Reader
}

// Read is io.Reader's.
func (s *source) Read(b []byte) (int, error) {
	if len(s.first) > 0 {
		n := copy(b, s.first)
		s.first = s.first[n:]
		return n, nil
	}
	return s.conn.Read(b)
}

// buffer is what reading a page takes. Targets take it from a pool when their
// answer arrives, and give it back when its values are stored: there are as many
// as answers are read at once, not as many as targets.
type buffer struct {
	in     *bufio.Reader
	source source
	answer answer
	first  [maxFirst]byte // the beginning of an answer
	bytes  [maxLine]byte

	points  []point
	batch   []series.Point
	entries []entry
	line    line
	memo    labelMemo
}

// maxFirst is how much of an answer is read at once: all of it, for 8 GPUs and a
// few fields.
const maxFirst = 16 << 10

// maxKept is how many values a buffer keeps room for: those of a node of 8 GPUs
// with 7 instances each and 20 fields. A page with more costs its target alone.
const maxKept = 1 << 10

func newBuffer() any { return &buffer{in: bufio.NewReaderSize(nil, maxHeadLine)} }

// take gives the runner a buffer for a page.
func (r *runner) take() *buffer {
	b := r.s.buffers.Get().(*buffer)
	p := r.page
	r.buffer, r.batch.Points = b, b.batch
	p.points, p.next, p.line, p.memo = b.points, b.entries, b.line, &b.memo
	return b
}

// release gives the buffer back, if there is one.
func (r *runner) release() {
	b, p := r.buffer, r.page
	if b == nil {
		return
	}
	b.points, b.entries, b.line, b.batch = kept(p.points), kept(p.next), p.line, kept(r.batch.Points)
	b.source, b.answer = source{}, answer{}
	r.buffer, r.batch.Points = nil, nil
	p.points, p.next, p.line, p.memo = nil, nil, line{}, nil
	r.s.buffers.Put(b)
}

func kept[T any](list []T) []T {
	if cap(list) > maxKept {
		return nil
	}
	return list[:0]
}

// SPDX-License-Identifier: Apache-2.0

package podres

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
)

// caller makes unary gRPC calls over HTTP/2 (grpc.io's PROTOCOL-HTTP2.md),
// through direct or net/http.
type caller struct {
	socket    string
	transport *http.Transport

	calling sync.Mutex // held during a call over direct
	direct  *direct    // nil: not connected
	good    []string   // trailers of calls that succeeded, encoded

	mu     sync.Mutex  // guards the following fields
	server os.FileInfo // the socket's file at the last dial
	starts int64       // different socket files that were dialled, which is the number of server starts
}

func newCaller(socket string) *caller {
	c := &caller{socket: socket}
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	c.transport = &http.Transport{
		Protocols:          protocols,
		DisableCompression: true,
		// The kubelet keeps idle connections open, and so does the client.
		IdleConnTimeout: 0,
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
	}
	return c
}

func (c *caller) dial(ctx context.Context) (net.Conn, error) {
	file, err := os.Stat(c.socket) // before the dial, so that a newer file is noticed at the next one
	if err != nil {
		return nil, &dialError{err}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.socket)
	if err != nil {
		return nil, &dialError{err}
	}
	c.connected(file)
	return conn, nil
}

// connected counts a connection to the server of a socket's file. A restarted
// server makes a new file. It compares the time too, because inode numbers are
// reused.
func (c *caller) connected(file os.FileInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil || !os.SameFile(c.server, file) || !c.server.ModTime().Equal(file.ModTime()) {
		c.starts++
	}
	c.server = file
}

// serverStarts returns how many starts of the server have been connected to.
func (c *caller) serverStarts() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.starts
}

func (c *caller) close() {
	c.transport.CloseIdleConnections()
	c.calling.Lock()
	defer c.calling.Unlock()
	c.hangUp()
}

// hangUp ends the direct connection; the caller holds calling.
func (c *caller) hangUp() {
	if c.direct != nil {
		_ = c.direct.conn.Close()
		c.direct = nil
	}
}

// prefixLength is the size of a message's prefix: one byte for compression,
// four for the length.
const prefixLength = 5

// maxAttempts limits the connections that one call tries.
const maxAttempts = 3

// call calls method, such as /v1.Service/Method, with the empty message, and
// returns the response of up to limit bytes. If direct fails, net/http makes
// the call again to find the reason. The server may close the connection
// between two calls or during one: then the call is repeated over a new
// connection. The methods only read.
func (c *caller) call(ctx context.Context, method string, limit int) ([]byte, error) {
	answer, ending, err := c.directly(ctx, method, limit)
	if err == nil && ending == "" {
		return answer, nil
	}
	defer c.transport.CloseIdleConnections()
	for range maxAttempts {
		if answer, err = c.attempt(ctx, method, limit); err == nil {
			c.learn(ending)
		}
		_, refused := errors.AsType[*dialError](err)
		_, broken := errors.AsType[*connectionError](err)
		if !broken || refused || ctx.Err() != nil {
			return answer, err
		}
	}
	return answer, err
}

// directly makes a call over the direct connection. It also returns the
// trailers if they are not known to mean success.
func (c *caller) directly(ctx context.Context, method string, limit int) (answer []byte, ending string, err error) {
	c.calling.Lock()
	defer c.calling.Unlock()
	if c.direct == nil {
		conn, err := c.dial(ctx)
		if err != nil {
			return nil, "", err
		}
		c.direct = newDirect(conn)
	}
	d := c.direct
	body, err := d.call(ctx, method, limit)
	if err == nil {
		answer, err = unprefixed(body)
	}
	if err != nil || d.last {
		c.hangUp()
	}
	if err == nil && !slices.Contains(c.good, string(d.ending)) {
		ending = string(d.ending)
	}
	return answer, ending, err
}

// maxGood limits the known trailers of success: a server has one form of it.
const maxGood = 8

// learn remembers trailers as those of a success: net/http has just had one
// from the same server.
func (c *caller) learn(ending string) {
	c.calling.Lock()
	defer c.calling.Unlock()
	if ending != "" && len(c.good) < maxGood && !slices.Contains(c.good, ending) {
		c.good = append(c.good, ending)
	}
}

// dialError is the error of a connection that could not be dialled.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

// connectionError is the error of a connection that could not be opened, or
// that ended before the response.
type connectionError struct{ error }

func (e *connectionError) Unwrap() error { return e.error }

// attempt makes a call once.
func (c *caller) attempt(ctx context.Context, method string, limit int) ([]byte, error) {
	empty := bytes.NewReader(make([]byte, prefixLength))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+method, empty)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	req.Header.Set("User-Agent", "gpupilot-agent")
	res, err := c.transport.RoundTrip(req)
	if err != nil {
		return nil, &connectionError{err}
	}
	defer func() { _ = res.Body.Close() }()
	if t := res.Header.Get("Content-Type"); res.StatusCode != http.StatusOK || !strings.HasPrefix(t, "application/grpc") {
		return nil, fmt.Errorf("the answer is not gRPC: %s, content type %q", res.Status, t)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, int64(limit)+prefixLength+1))
	if err != nil {
		return nil, &connectionError{err}
	}
	if len(body) > limit+prefixLength {
		return nil, fmt.Errorf("the answer has more than %d bytes", limit)
	}
	if err := outcome(res); err != nil {
		return nil, err
	}
	return unprefixed(body)
}

// outcome returns the call's error from the trailers, or from the headers of a
// response without a body.
func outcome(res *http.Response) error {
	h := res.Trailer
	if h.Get("Grpc-Status") == "" {
		h = res.Header
	}
	code, message := h.Get("Grpc-Status"), h.Get("Grpc-Message")
	if code == "0" {
		return nil
	}
	if text, err := url.PathUnescape(message); err == nil {
		message = text
	}
	return fmt.Errorf("gRPC status %q: %s", code, message)
}

// unprefixed returns the one message in a body.
func unprefixed(body []byte) ([]byte, error) {
	if len(body) < prefixLength {
		return nil, fmt.Errorf("the answer ends after %d bytes", len(body))
	}
	if body[0] != 0 {
		return nil, fmt.Errorf("the answer is compressed, which the client did not request")
	}
	message := body[prefixLength:]
	if n := binary.BigEndian.Uint32(body[1:]); uint64(n) != uint64(len(message)) {
		return nil, fmt.Errorf("the answer has %d bytes, its prefix says %d", len(message), n)
	}
	return message, nil
}

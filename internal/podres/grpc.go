// SPDX-License-Identifier: Apache-2.0

package podres

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
)

// caller makes gRPC's simplest calls, one message for one message, over the
// HTTP/2 of net/http: gRPC over HTTP/2 (grpc.io's PROTOCOL-HTTP2.md).
type caller struct {
	transport *http.Transport
	dialled   atomic.Int64 // connections that were made
}

func newCaller(socket string) *caller {
	c := &caller{}
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	c.transport = &http.Transport{
		Protocols:          protocols,
		DisableCompression: true,
		// A kubelet does not close idle connections, and neither do we.
		IdleConnTimeout: 0,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
			if err == nil {
				c.dialled.Add(1)
			}
			return conn, err
		},
	}
	return c
}

func (c *caller) close() { c.transport.CloseIdleConnections() }

// prefixLength is what precedes a message: a byte that says whether it is
// compressed, and four of its length.
const prefixLength = 5

// call calls method, such as /v1.Service/Method, with the empty message, and
// gives the answer's bytes, of which there may be limit.
func (c *caller) call(ctx context.Context, method string, limit int) ([]byte, error) {
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
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if t := res.Header.Get("Content-Type"); res.StatusCode != http.StatusOK || !strings.HasPrefix(t, "application/grpc") {
		return nil, fmt.Errorf("the answer is no gRPC: %s, content type %q", res.Status, t)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, int64(limit)+prefixLength+1))
	if err != nil {
		return nil, err
	}
	if len(body) > limit+prefixLength {
		return nil, fmt.Errorf("the answer has more than %d bytes", limit)
	}
	if err := outcome(res); err != nil {
		return nil, err
	}
	return unprefixed(body)
}

// outcome is the call's outcome, which follows the answer; where there is no
// answer, it is among the headers.
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

// unprefixed is the one message in a body.
func unprefixed(body []byte) ([]byte, error) {
	if len(body) < prefixLength {
		return nil, fmt.Errorf("the answer ends after %d bytes", len(body))
	}
	if body[0] != 0 {
		return nil, fmt.Errorf("the answer is compressed, which was not asked for")
	}
	message := body[prefixLength:]
	if n := binary.BigEndian.Uint32(body[1:]); uint64(n) != uint64(len(message)) {
		return nil, fmt.Errorf("the answer has %d bytes instead of %d", len(message), n)
	}
	return message, nil
}

// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener whose connections are in memory: a synctest bubble waits
// for those, and for no socket.
type pipes struct {
	accepted chan net.Conn
	closed   chan struct{}
	close    func()
}

func newPipes() *pipes {
	l := &pipes{accepted: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error { l.close(); return nil }

func (l *pipes) Addr() net.Addr { return &net.UnixAddr{Net: "pipe", Name: "pipe"} }

func (l *pipes) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.accepted <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Serve ends within shutdownGrace, whatever an answer under way does.
func TestServeStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		entered := make(chan struct{})
		h := http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			close(entered)
			<-req.Context().Done() // until the server gives up on us
		})
		ctx, cancel := context.WithCancel(t.Context())
		l := newPipes()
		done := make(chan error, 1)
		go func() { done <- Serve(ctx, l, h, Timeouts{}, slog.New(slog.DiscardHandler)) }()
		go func() {
			client := http.Client{Transport: &http.Transport{DialContext: l.dial, DisableKeepAlives: true}}
			if res, err := client.Get("http://pipe/slow"); err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
		}()
		<-entered
		begin := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if d := time.Since(begin); d != shutdownGrace {
			t.Errorf("stopping took %v, want %v", d, shutdownGrace)
		}
	})
}

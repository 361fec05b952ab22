// SPDX-License-Identifier: Apache-2.0

//go:build linux

package readers

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// Client is what one connection does once it is open, until ctx ends or the server closes it.
type Client func(ctx context.Context, c net.Conn)

// Attack is a number of hostile connections, each of which is opened again when it ends.
type Attack struct {
	Name        string
	Sources     int // addresses that connect, from 10 on
	Connections int // in total
	Does        Client
}

// Run keeps the connections open until ctx ends.
func (x *Attack) Run(ctx context.Context, l *Link, address string) {
	var all sync.WaitGroup
	defer all.Wait()
	for i := range x.Connections {
		all.Go(func() {
			Each(ctx, 250*time.Millisecond, func() bool {
				c, err := l.Dial(ctx, 10+i%x.Sources, 4096, address)
				if err != nil {
					return true
				}
				stop := context.AfterFunc(ctx, func() { _ = c.Close() })
				defer stop()
				x.Does(ctx, c)
				_ = c.Close()
				return true
			})
		})
	}
}

// Asks sends a request, and then does something else.
func Asks(request string, then Client) Client {
	return func(ctx context.Context, c net.Conn) {
		if _, err := io.WriteString(c, request); err == nil {
			then(ctx, c)
		}
	}
}

// Never waits until the server closes the connection. It peeks, so that it reads nothing.
func Never(ctx context.Context, c net.Conn) {
	raw, err := tcp(c).SyscallConn()
	if err != nil {
		return
	}
	Each(ctx, 100*time.Millisecond, func() bool {
		var n int
		var got error
		if err := raw.Control(func(fd uintptr) {
			n, _, got = syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		}); err != nil {
			return false
		}
		return n > 0 || errors.Is(got, syscall.EAGAIN)
	})
}

// tcp is the connection below TLS.
func tcp(c net.Conn) *net.TCPConn {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = t.NetConn()
	}
	return c.(*net.TCPConn)
}

// Trickle reads a byte a second.
func Trickle(ctx context.Context, c net.Conn) {
	Each(ctx, time.Second, func() bool {
		_, err := c.Read(make([]byte, 1))
		return err == nil
	})
}

// Slowly writes a byte a second.
func Slowly(ctx context.Context, c net.Conn) {
	Each(ctx, time.Second, func() bool {
		_, err := c.Write([]byte("x"))
		return err == nil
	})
}

// HalfClose ends its own direction, and never reads.
func HalfClose(ctx context.Context, c net.Conn) {
	_ = tcp(c).CloseWrite()
	Never(ctx, c)
}

// Repeats sends a request ten times a second, and never reads.
func Repeats(request string) Client {
	return func(ctx context.Context, c net.Conn) {
		Each(ctx, 100*time.Millisecond, func() bool {
			_ = c.SetWriteDeadline(time.Now().Add(time.Second))
			_, err := io.WriteString(c, request)
			return err == nil
		})
	}
}

// Each calls f at an interval until it returns false or ctx ends.
func Each(ctx context.Context, every time.Duration, f func() bool) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for f() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

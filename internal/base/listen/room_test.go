// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// pipes is a listener that accepts what it is sent.
type dials struct{ conns chan net.Conn }

func (p *dials) Accept() (net.Conn, error) { return <-p.conns, nil }
func (p *dials) Close() error              { return nil }
func (p *dials) Addr() net.Addr            { return &net.TCPAddr{} }

type from struct {
	net.Conn
	host string
}

func (f from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(f.host), Port: 1} }

// Whoever opens the most connections loses one when another host comes.
func TestConnectionsAreBounded(t *testing.T) {
	in := &dials{make(chan net.Conn, 1)}
	limit := New(Limits{Connections: 10})
	l := limit.Of(in)
	open := func(host string) (client net.Conn) {
		t.Helper()
		client, server := net.Pipe()
		in.conns <- from{server, host}
		if _, err := l.Accept(); err != nil {
			t.Fatal(err)
		}
		return client
	}
	closed := func(c net.Conn) bool {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		_, err := c.Read(make([]byte, 1))
		return errors.Is(err, io.EOF)
	}
	kubelet := open("10.0.0.1")
	var noisy []net.Conn
	for range 30 {
		noisy = append(noisy, open("10.0.0.2"))
	}
	prometheus := open("10.0.0.3")
	if limit.Open() != 10 || limit.Closed() != 22 {
		t.Errorf("%d open, %d closed", limit.Open(), limit.Closed())
	}
	if closed(kubelet) || closed(prometheus) {
		t.Error("another host's connection was closed")
	}
	if !closed(noisy[0]) || !closed(noisy[21]) || closed(noisy[22]) {
		t.Error("not the oldest ones were closed")
	}
}

// A connection that ends makes room, and twice is once.
func TestConnectionsEnd(t *testing.T) {
	in := &dials{make(chan net.Conn, 1)}
	limit := New(Limits{Connections: 10})
	l := limit.Of(in)
	for range 100 {
		_, server := net.Pipe()
		in.conns <- from{server, "10.0.0.1"}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		_ = c.Close()
	}
	if limit.Open() != 0 || limit.Closed() != 0 || len(limit.sources) != 0 {
		t.Errorf("%d open, %d closed, %d hosts", limit.Open(), limit.Closed(), len(limit.sources))
	}
}

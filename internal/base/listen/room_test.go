// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"io"
	"net"
	"syscall"
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

// The kernel keeps little of a client that sends and does not read: else a few hundred of them use the memory for TCP of
// a node, and everybody else on it waits.
func TestTheKernelsBuffersAreBounded(t *testing.T) {
	for configured, most := range map[int]int{0: 512 << 10, 64 << 10: 128 << 10} { // Linux counts twice
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer tcp.Close()
		client, err := net.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		accepted, err := New(Limits{Connections: 1, Buffer: configured}).Of(tcp).Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer accepted.Close()
		raw, err := accepted.(*connection).Conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		for _, option := range []int{syscall.SO_RCVBUF, syscall.SO_SNDBUF} {
			n := 0
			if err := raw.Control(func(fd uintptr) { n, err = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, option) }); err != nil {
				t.Fatal(err)
			}
			if n == 0 || n > most {
				t.Errorf("Buffer %d: option %d is %d bytes, want at most %d", configured, option, n, most)
			}
		}
	}
}

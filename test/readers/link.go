// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package readers has clients that hold what a server gives them, on a link as between two nodes.
package readers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Link leads from this machine to a network namespace, with the MTU of a network. Clients connect from there: loopback's
// buffers take a whole page, and hide a reader that does not read.
type Link struct {
	Host string // the address of this machine, where servers listen

	prefix string
	wanted chan bool // a socket
	made   chan made
}

type made struct {
	fd  int
	err error
}

// NewLink makes a link until the test ends. The test is skipped without the rights to.
func NewLink(t testing.TB) *Link {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and ip (Debian's package iproute2) for a network namespace")
	}
	id := os.Getpid() % 0x10000
	l := &Link{prefix: fmt.Sprintf("10.%d.%d", 128+id>>8&0x7f, id&0xff), wanted: make(chan bool), made: make(chan made)}
	l.Host = l.prefix + ".1"
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Skipf("ip %v: %v: %s", args, err, out)
		}
	}
	namespace, host, inside := fmt.Sprintf("gpupilot-%d", id), fmt.Sprintf("gpua%d", id), fmt.Sprintf("gpub%d", id)
	ip("netns", "add", namespace)
	t.Cleanup(func() {
		_ = exec.Command("ip", "link", "del", host).Run()
		if out, err := exec.Command("ip", "netns", "del", namespace).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	ip("link", "add", host, "mtu", "1500", "type", "veth", "peer", "name", inside, "mtu", "1500", "netns", namespace)
	ip("address", "add", l.Host+"/24", "dev", host)
	ip("link", "set", host, "up")
	ip("-n", namespace, "link", "set", inside, "up")
	for i := 2; i < 255; i++ {
		ip("-n", namespace, "address", "add", fmt.Sprintf("%s.%d/24", l.prefix, i), "dev", inside)
	}
	f, err := os.Open("/run/netns/" + namespace)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = l.serve(f) }()
	t.Cleanup(func() { close(l.wanted) })
	if m := <-l.made; m.err != nil {
		t.Fatal(m.err)
	}
	return l
}

// Dial connects from address i of the namespace, 2 to 254. receive is the kernel's buffer of what is not read; 0: its own.
func (l *Link) Dial(ctx context.Context, i, receive int, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: time.Minute, LocalAddr: &net.TCPAddr{IP: net.ParseIP(fmt.Sprintf("%s.%d", l.prefix, i))}}
	d.Control = func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = l.move(int(fd), receive) }), err)
	}
	return d.DialContext(ctx, "tcp", address)
}

// serve makes sockets of the namespace on a thread that is in it, and which ends with this goroutine.
func (l *Link) serve(namespace *os.File) error {
	runtime.LockOSThread()
	err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET)
	l.made <- made{err: err}
	for err == nil && <-l.wanted {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		l.made <- made{fd, err}
	}
	return namespace.Close()
}

// move replaces a socket that is not connected by one of the namespace.
func (l *Link) move(fd, receive int) error {
	l.wanted <- true
	s := <-l.made // that of another one is as good
	if s.err != nil {
		return s.err
	}
	defer func() { _ = unix.Close(s.fd) }()
	if receive > 0 {
		s.err = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receive)
	}
	return errors.Join(s.err, unix.Dup3(s.fd, fd, unix.O_CLOEXEC))
}

// From returns a dialer from address i for an HTTP client.
func (l *Link) From(i int) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, _, address string) (net.Conn, error) { return l.Dial(ctx, i, 0, address) }
}

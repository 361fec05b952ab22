// SPDX-License-Identifier: Apache-2.0

//go:build unix

package scrape

import (
	"errors"
	"io"
	"net"
	"syscall"
)

// rawConn returns access to a connection's file descriptor; nil if it has none.
func rawConn(conn net.Conn) syscall.RawConn {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// sendRaw is send with two system calls: one writes the request, one reads the
// response after it has arrived. net.Conn's Read tries to read before it waits, and
// would hold a buffer while the target prepares its response.
//
// The request is written inside RawConn.Read, which records the arrival of data from
// its start. A response that arrives before the wait is therefore not missed.
func (c *connection) sendRaw(wire []byte, take func() *buffer) (n int, err error) {
	sent := false
	waited := c.raw.Read(func(fd uintptr) (done bool) {
		if !sent {
			sent = true
			err = c.write(fd, wire)
			return err != nil
		}
		n, err = again(func() (int, error) { return syscall.Read(int(fd), take().first[:]) })
		if errors.Is(err, syscall.EAGAIN) {
			n, err = 0, nil
			return false
		}
		return true
	})
	switch {
	case err == nil && waited != nil:
		return 0, waited
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// write writes the request. If the socket does not accept all bytes at once, net.Conn
// writes the rest.
func (c *connection) write(fd uintptr, wire []byte) error {
	n, err := again(func() (int, error) { return syscall.Write(int(fd), wire) })
	if err != nil && !errors.Is(err, syscall.EAGAIN) {
		return err
	}
	if n = max(n, 0); n < len(wire) {
		_, err := c.conn.Write(wire[n:])
		return err
	}
	return nil
}

// again repeats a system call until no signal interrupts it.
func again(call func() (int, error)) (n int, err error) {
	for {
		if n, err = call(); !errors.Is(err, syscall.EINTR) {
			return max(n, 0), err
		}
	}
}

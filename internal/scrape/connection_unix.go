// SPDX-License-Identifier: Apache-2.0

//go:build unix

package scrape

import (
	"errors"
	"io"
	"net"
	"syscall"
)

// rawConn gives access to a connection's file descriptor; nil: it has none.
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

// sendRaw is send with two system calls: one writes the request, one reads the answer
// once it has arrived. net.Conn's Read tries to read before it waits, and would need a
// buffer for that while the target works on its answer.
//
// The request is written in RawConn's Read, which notes the arrival of data from its
// beginning on. An answer that arrives before the wait is not missed.
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

// write writes the request. What the socket does not take at once is net.Conn's.
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

// again repeats a system call that a signal interrupted.
func again(call func() (int, error)) (n int, err error) {
	for {
		if n, err = call(); !errors.Is(err, syscall.EINTR) {
			return max(n, 0), err
		}
	}
}

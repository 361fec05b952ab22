// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package scrape

import (
	"errors"
	"net"
	"syscall"
)

// rawConn returns nil: sendRaw is not supported on this system.
func rawConn(net.Conn) syscall.RawConn { return nil }

func (c *connection) sendRaw([]byte, func() *buffer) (int, error) { return 0, errors.ErrUnsupported }

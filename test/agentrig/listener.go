// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agentrig

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// listenState is TCP_LISTEN in the column st of /proc/net/tcp.
const listenState = "0A"

// listenerOf is the IPv4 address on which a process listens for TCP, empty where
// there is none (yet). The address is read from the kernel, because programs and
// their releases log it in different forms.
func listenerOf(pid int) (string, error) {
	sockets, err := socketsOf(pid)
	if err != nil || len(sockets) == 0 {
		return "", err
	}
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		return "", gone(err)
	}
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		const state, inode = 3, 9 // columns
		if len(f) > inode && f[state] == listenState && sockets[f[inode]] {
			return addressOf(f[1])
		}
	}
	return "", nil
}

// socketsOf are the inodes of a process's sockets.
func socketsOf(pid int) (map[string]bool, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return nil, err
	}
	sockets := map[string]bool{}
	for _, f := range files {
		target, err := os.Readlink(f)
		if err != nil {
			continue // it was closed in between
		}
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			sockets[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return sockets, nil
}

// gone leaves out the error of a process that has ended.
func gone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// addressOf decodes an address of /proc/net/tcp: the bytes of the IP in this
// machine's order, then the port.
func addressOf(s string) (string, error) {
	ip, port, _ := strings.Cut(s, ":")
	a, err := strconv.ParseUint(ip, 16, 32)
	if err != nil {
		return "", fmt.Errorf("address %q: %w", s, err)
	}
	p, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return "", fmt.Errorf("address %q: %w", s, err)
	}
	// Both machines that this runs on have the least significant byte first.
	return net.JoinHostPort(net.IPv4(byte(a), byte(a>>8), byte(a>>16), byte(a>>24)).String(), strconv.FormatUint(p, 10)), nil
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agentrig

import (
	"fmt"
	"net"
	"os"
	"testing"
)

// The address of a program is found as soon as it listens.
func TestListenerOf(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	got, err := addressOf(fmt.Sprintf("0100007F:%04X", l.Addr().(*net.TCPAddr).Port))
	if err != nil || got != l.Addr().String() {
		t.Errorf("%q, %v; want %s", got, err, l.Addr())
	}
	if got, err := listenerOf(os.Getpid()); err != nil || got != l.Addr().String() {
		t.Errorf("%q, %v; want %s", got, err, l.Addr())
	}
	if _, err := addressOf("x"); err == nil {
		t.Error("an address of nothing")
	}
	const noProcess = 1 << 30
	if got, err := listenerOf(noProcess); got != "" || err != nil {
		t.Errorf("a process that has ended: %q, %v", got, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package logtest keeps what a program or a logger writes, for tests.
package logtest

import (
	"bytes"
	"sync"
)

// Buffer is a log that several goroutines may write and read. The zero value is empty.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write appends to the log.
func (l *Buffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String returns what was written since the last Take.
func (l *Buffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Take returns what was written since the last Take.
func (l *Buffer) Take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.b.Reset()
	return l.b.String()
}

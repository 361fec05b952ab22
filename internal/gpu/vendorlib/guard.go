// SPDX-License-Identifier: Apache-2.0

package vendorlib

import (
	"sync"
	"sync/atomic"
	"time"
)

// Guard is held while a device is read. A backend's device embeds it. The zero
// value is ready for use.
type Guard struct {
	mu       sync.Mutex
	began    atomic.Int64 // when the read in progress began, in Unix nanoseconds; 0: no read in progress
	released bool
}

// Begin starts a read at now. It returns false if the device was released. If
// it returns true, End must follow.
func (g *Guard) Begin(now time.Time) bool {
	g.mu.Lock()
	if g.released {
		g.mu.Unlock()
		return false
	}
	g.began.Store(now.UnixNano())
	return true
}

// End ends the read that Begin started.
func (g *Guard) End() {
	g.began.Store(0)
	g.mu.Unlock()
}

// Elapsed returns how long the read in progress has taken; 0 without one. It
// does not block.
func (g *Guard) Elapsed(now time.Time) time.Duration {
	began := g.began.Load()
	if began == 0 {
		return 0
	}
	return time.Duration(now.UnixNano() - began)
}

// Release refuses further reads and calls free. It does nothing if a read is in
// progress: the read may hang and still use what free would free.
func (g *Guard) Release(free func()) {
	if !g.mu.TryLock() {
		return
	}
	defer g.mu.Unlock()
	g.released = true
	free()
}

// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"sync"
	"time"
)

// Calls counts the calls that are inside a vendor's library. A call cannot be
// cancelled: the last one to return ends a session that is being closed.
type Calls struct {
	end  func()
	done chan struct{} // closed after end

	mu      sync.Mutex
	inside  int // that are in the library or will be
	closing bool
}

// NewCalls makes a Calls whose end lets the library go.
func NewCalls(end func()) *Calls { return &Calls{end: end, done: make(chan struct{})} }

// Enter asks to call the library. Where it says yes, Leave must follow.
func (c *Calls) Enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return false
	}
	c.inside++
	return true
}

// Leave ends what Enter began.
func (c *Calls) Leave() {
	c.mu.Lock()
	c.inside--
	last := c.closing && c.inside == 0
	c.mu.Unlock()
	if last {
		c.finish()
	}
}

// Inside is how many calls are in the library.
func (c *Calls) Inside() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inside
}

func (c *Calls) finish() {
	c.end()
	close(c.done)
}

// Close lets nobody in any more, waits for those inside, and says whether they
// came back in time. It is called once.
func (c *Calls) Close(patience time.Duration) bool {
	c.mu.Lock()
	c.closing = true
	last := c.inside == 0
	c.mu.Unlock()
	if last {
		c.finish()
		return true
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c.done:
		return true
	case <-timer.C:
		return false
	}
}

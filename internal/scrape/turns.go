// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"sync"
	"time"
)

// turns calls a function again and again, each time when the last call said,
// until it is stopped. Between two calls it holds a timer and no goroutine: the
// stacks of 10,000 goroutines that wait are 80 MiB.
type turns struct {
	do    func() (next time.Time) // makes one turn
	ended func()                  // is called once, when no turn comes any more

	mu      sync.Mutex
	timer   *time.Timer // nil: not started
	waiting bool        // for the timer
	stopped bool
}

// start has the first turn at a time.
func (t *turns) start(first time.Time) {
	t.mu.Lock()
	if !t.stopped {
		t.waiting = true
		t.timer = time.AfterFunc(time.Until(first), t.turn)
		t.mu.Unlock()
		return
	}
	t.mu.Unlock()
	t.ended()
}

func (t *turns) turn() {
	if !t.proceed(nil) {
		return
	}
	next := t.do()
	t.proceed(&next)
}

// proceed begins a turn, or sets the time of the next one. Where turns were
// stopped meanwhile it ends them.
func (t *turns) proceed(next *time.Time) bool {
	t.mu.Lock()
	if !t.stopped {
		if t.waiting = next != nil; t.waiting {
			t.timer.Reset(time.Until(*next))
		}
		t.mu.Unlock()
		return true
	}
	t.mu.Unlock()
	t.ended()
	return false
}

// stop ends the turns: at once, or after the one that is under way. It may be
// called again, and before start.
func (t *turns) stop() {
	t.mu.Lock()
	// If the timer cannot be stopped, its turn has begun. The turn finds the target gone.
	now := !t.stopped && t.waiting && t.timer.Stop()
	t.stopped = true
	t.mu.Unlock()
	if now {
		t.ended()
	}
}

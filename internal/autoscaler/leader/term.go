// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"sync"
)

// Term is the leadership of this replica, for tasks that only the leader runs. Its zero
// value is ready to use, outside of a term. A replica may begin and end many terms.
type Term struct {
	mu      sync.Mutex
	leads   bool
	changed chan struct{} // closed at the next change; nil: no goroutine waits
}

// Begin starts a term. It does nothing within one.
func (t *Term) Begin() { t.Set(true) }

// Set begins or ends a term. An end cancels the context of every task that runs in it.
func (t *Term) Set(leads bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leads == leads {
		return
	}
	t.leads = leads
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

func (t *Term) now() (leads bool, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return t.leads, t.changed
}

// Run runs task once in each term, until ctx is done. The context of task ends with the
// term, and task must not return before that. Run waits for it.
func (t *Term) Run(ctx context.Context, task func(context.Context)) {
	for ctx.Err() == nil {
		leads, changed := t.now()
		if !leads {
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		}
		inTerm, cancel := context.WithCancel(ctx)
		go func() { // ends with inTerm, which Run cancels
			select {
			case <-changed:
				cancel()
			case <-inTerm.Done():
			}
		}()
		task(inTerm)
		cancel()
	}
}

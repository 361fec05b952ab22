// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"slices"
	"sync"
)

// turns bounds how many queries run at a time. Namespaces that wait are served
// in turn, one query each, and none holds more than its share of the slots, so
// that the slow queries of one namespace delay no other.
type turns struct {
	share int // slots that one namespace may hold

	mu      sync.Mutex
	free    int
	held    map[string]int             // slots by namespace
	waiting map[string][]chan struct{} // by namespace, the longest wait first
	order   []string                   // namespaces that wait, the next one first
}

func newTurns(slots, share int) *turns {
	return &turns{free: slots, share: share, held: map[string]int{}, waiting: map[string][]chan struct{}{}}
}

// take waits for a slot. Its error is that of ctx; then there is no slot to release.
func (t *turns) take(ctx context.Context, namespace string) error {
	granted := make(chan struct{})
	t.mu.Lock()
	if t.waiting[namespace] == nil {
		t.order = append(t.order, namespace)
	}
	t.waiting[namespace] = append(t.waiting[namespace], granted)
	t.grant()
	t.mu.Unlock()
	select {
	case <-granted:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-granted: // in the meantime
		t.put(namespace)
	default:
		t.leave(namespace, slices.Index(t.waiting[namespace], granted))
	}
	return ctx.Err()
}

// release gives a slot back.
func (t *turns) release(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put(namespace)
}

// put returns a slot and grants it to the next. t.mu is held.
func (t *turns) put(namespace string) {
	t.free++
	if t.held[namespace]--; t.held[namespace] == 0 {
		delete(t.held, namespace)
	}
	t.grant()
}

// grant hands out the free slots. t.mu is held.
func (t *turns) grant() {
	for t.free > 0 {
		next := slices.IndexFunc(t.order, func(namespace string) bool { return t.held[namespace] < t.share })
		if next < 0 {
			return
		}
		namespace := t.order[next]
		granted := t.waiting[namespace][0]
		t.leave(namespace, 0)
		if t.waiting[namespace] != nil { // to the end of the line
			at := slices.Index(t.order, namespace)
			t.order = append(slices.Delete(t.order, at, at+1), namespace)
		}
		t.free--
		t.held[namespace]++
		close(granted)
	}
}

// leave removes the i-th of those that wait in a namespace. t.mu is held.
func (t *turns) leave(namespace string, i int) {
	t.waiting[namespace] = slices.Delete(t.waiting[namespace], i, i+1)
	if len(t.waiting[namespace]) == 0 {
		delete(t.waiting, namespace)
		t.order = slices.DeleteFunc(t.order, func(s string) bool { return s == namespace })
	}
}

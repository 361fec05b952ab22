// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"slices"
	"sync"
)

// querySlotQueue bounds the number of queries that run at the same time. Waiting
// namespaces get slots round-robin, and none holds more than its share, so that slow
// queries of one namespace do not delay the others.
type querySlotQueue struct {
	share int // slots that one namespace may hold

	mu      sync.Mutex
	free    int
	held    map[string]int             // slots by namespace
	waiting map[string][]chan struct{} // by namespace, longest wait first
	order   []string                   // waiting namespaces, next one first
}

func newQuerySlotQueue(slots, share int) *querySlotQueue {
	return &querySlotQueue{free: slots, share: share, held: map[string]int{}, waiting: map[string][]chan struct{}{}}
}

// acquire waits for a slot. If it returns an error, which is that of ctx, there is no
// slot to release.
func (t *querySlotQueue) acquire(ctx context.Context, namespace string) error {
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
		t.returnSlot(namespace)
	default:
		t.removeWaiting(namespace, slices.Index(t.waiting[namespace], granted))
	}
	return ctx.Err()
}

// release frees a slot.
func (t *querySlotQueue) release(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.returnSlot(namespace)
}

// returnSlot frees a slot and grants it to the next waiter. t.mu is held.
func (t *querySlotQueue) returnSlot(namespace string) {
	t.free++
	if t.held[namespace]--; t.held[namespace] == 0 {
		delete(t.held, namespace)
	}
	t.grant()
}

// grant assigns the free slots to waiters. t.mu is held.
func (t *querySlotQueue) grant() {
	for t.free > 0 {
		next := slices.IndexFunc(t.order, func(namespace string) bool { return t.held[namespace] < t.share })
		if next < 0 {
			return
		}
		namespace := t.order[next]
		granted := t.waiting[namespace][0]
		t.removeWaiting(namespace, 0)
		if t.waiting[namespace] != nil { // to the end of the line
			at := slices.Index(t.order, namespace)
			t.order = append(slices.Delete(t.order, at, at+1), namespace)
		}
		t.free--
		t.held[namespace]++
		close(granted)
	}
}

// removeWaiting removes the i-th waiter of a namespace. t.mu is held.
func (t *querySlotQueue) removeWaiting(namespace string, i int) {
	t.waiting[namespace] = slices.Delete(t.waiting[namespace], i, i+1)
	if len(t.waiting[namespace]) == 0 {
		delete(t.waiting, namespace)
		t.order = slices.DeleteFunc(t.order, func(s string) bool { return s == namespace })
	}
}

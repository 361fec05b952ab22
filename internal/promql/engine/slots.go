// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"container/list"
	"context"
	"errors"
	"sync"

	"github.com/prometheus/prometheus/promql"
)

// The bounds of waiting queries.
const (
	maxWaiting      = 256 // of all payers
	maxWaitingPayer = 32  // of one
)

// slots bounds the queries that run at the same time. A payer has at most share of
// them. A free slot goes to the payer that has the fewest, and among those to the one
// that has waited longest.
type slots struct {
	share int

	mu      sync.Mutex
	free    int
	running map[string]int // by payer; without zeros
	waiting map[string]int
	queue   *list.List // of *waiter
}

type waiter struct {
	payer string
	ready chan struct{} // closed when the waiter has a slot
}

func newSlots(n, share int) *slots {
	if share <= 0 {
		share = max(1, n/2)
	}
	return &slots{share: share, free: n, running: map[string]int{}, waiting: map[string]int{}, queue: list.New()}
}

// acquire waits for a slot until ctx is done.
func (s *slots) acquire(ctx context.Context, payer string) error {
	s.mu.Lock()
	if s.free > 0 && s.running[payer] < s.share {
		s.free--
		s.running[payer]++
		s.mu.Unlock()
		return nil
	}
	if s.queue.Len() >= maxWaiting || s.waiting[payer] >= maxWaitingPayer {
		s.mu.Unlock()
		return exceeds(LimitSlots, "too many queries are waiting; try again later")
	}
	w := &waiter{payer: payer, ready: make(chan struct{})}
	e := s.queue.PushBack(w)
	s.waiting[payer]++
	s.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-w.ready: // at the same time
		return nil
	default:
	}
	s.remove(e)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return exceeds(LimitSlots, "the query timed out while it waited for other queries; try again later")
	}
	return promql.ErrQueryCanceled("query queue")
}

// remove takes a waiter off the queue. s.mu is held.
func (s *slots) remove(e *list.Element) {
	payer := s.queue.Remove(e).(*waiter).payer
	decrement(s.waiting, payer)
}

// release returns a payer's slot and gives it to a waiter.
func (s *slots) release(payer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free++
	decrement(s.running, payer)
	for s.free > 0 {
		e := s.next()
		if e == nil {
			return
		}
		w := e.Value.(*waiter)
		s.remove(e)
		s.free--
		s.running[w.payer]++
		close(w.ready)
	}
}

// next returns the waiter that gets the next slot; nil if none may have one. s.mu is
// held.
func (s *slots) next() (best *list.Element) {
	fewest := s.share
	for e := s.queue.Front(); e != nil; e = e.Next() {
		if n := s.running[e.Value.(*waiter).payer]; n < fewest {
			best, fewest = e, n
		}
	}
	return best
}

func decrement(m map[string]int, key string) {
	if m[key]--; m[key] <= 0 {
		delete(m, key)
	}
}

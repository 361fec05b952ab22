// SPDX-License-Identifier: Apache-2.0

// Package queries evaluates the PromQL of GPUAutoscalers and MetricQueries, and shares the
// time of an engine or backend among namespaces.
package queries

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// ErrFull is the error of a query that cannot wait, because too many do.
var ErrFull = errors.New("too many queries are waiting; try again later")

// maxWaitingPayers is how many times the bound of one payer's waiting queries is that of
// all payers.
const maxWaitingPayers = 8

// Config holds the settings of Slots.
type Config struct {
	Slots int // queries that run at the same time
	Share int // of one payer; half of Slots, at least one
	// ForSignals is the number of slots that only signals of GPUAutoscalers use. Of a
	// payer's share it is the same part, rounded down.
	ForSignals int
}

// ForBackend returns the settings for a PromQL backend over HTTP.
func ForBackend() Config { return Config{Slots: 8, Share: 4, ForSignals: 4} }

// ForWindows returns the settings for rules, signals and MetricQueries over the windows.
func ForWindows() Config { return Config{Slots: 2, Share: 1, ForSignals: 1} }

// Request is a query that needs a slot.
type Request struct {
	Payer  string // whose share it uses: a namespace, or an operator's work
	Signal bool   // of a GPUAutoscaler
	// MaxWaiting bounds the waiting requests of the payer that have a bound. 0: none.
	MaxWaiting int
}

// Slots bounds the queries that run at the same time. Each query waits in one queue. A
// free slot goes to the waiting payer that was served longest ago, unless its share is
// used up; within a payer, signals and other queries take turns. Queries other than
// signals never hold the slots that are for signals. It is safe for concurrent use.
type Slots struct {
	cfg Config

	mu      sync.Mutex
	held    int
	others  int // of held, not of signals
	bounded int // waiting requests with a bound
	payers  map[string]*payer
	order   []string // waiting payers, next one first
}

// payer is who holds slots or waits for them.
type payer struct {
	held, others, bounded int
	signals, rest         []*waiter // longest wait first
	signalBefore          bool      // the last slot was for a signal
}

type waiter struct {
	Request
	granted chan struct{}
}

func (p *payer) waits() bool { return len(p.signals)+len(p.rest) > 0 }

// NewSlots makes free slots.
func NewSlots(cfg Config) *Slots {
	if cfg.Share <= 0 {
		cfg.Share = max(1, cfg.Slots/2)
	}
	return &Slots{cfg: cfg, payers: map[string]*payer{}}
}

// Acquire waits for a slot until ctx is done. release frees it. The error is ErrFull or
// that of ctx.
func (s *Slots) Acquire(ctx context.Context, r Request) (release func(), err error) {
	w := &waiter{r, make(chan struct{})}
	s.mu.Lock()
	if !s.enqueue(w) {
		s.mu.Unlock()
		return nil, ErrFull
	}
	s.grant()
	s.mu.Unlock()
	select {
	case <-w.granted:
		return s.releaseOf(r), nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-w.granted: // in the meantime
		s.free(r)
	default:
		s.dequeue(w)
		s.grant() // of the payer's other kind
	}
	return nil, ctx.Err()
}

func (s *Slots) releaseOf(r Request) func() {
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.free(r)
	})
}

// Lightest returns the payer with the fewest requests, the first of several; empty if
// there is none.
func (s *Slots) Lightest(names []string) (best string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fewest := -1
	for _, name := range names {
		n := 0
		if p := s.payers[name]; p != nil {
			n = p.held + len(p.signals) + len(p.rest)
		}
		if fewest < 0 || n < fewest {
			best, fewest = name, n
		}
	}
	return best
}

// Counts returns the queries that run and that wait.
func (s *Slots) Counts() (running, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.payers {
		waiting += len(p.signals) + len(p.rest)
	}
	return s.held, waiting
}

// enqueue adds a waiter, unless too many wait. s.mu is held.
func (s *Slots) enqueue(w *waiter) bool {
	p := s.payers[w.Payer]
	if p == nil {
		p = &payer{}
	}
	if w.MaxWaiting > 0 {
		free := s.held < s.cfg.Slots && s.mayHold(p, w.Signal) && !p.waits()
		if !free && (p.bounded >= w.MaxWaiting || s.bounded >= maxWaitingPayers*w.MaxWaiting) {
			return false
		}
		p.bounded++
		s.bounded++
	}
	s.payers[w.Payer] = p
	if !p.waits() {
		s.order = append(s.order, w.Payer)
	}
	list := p.list(w.Signal)
	*list = append(*list, w)
	return true
}

// list returns the waiting signals or the other waiting queries.
func (p *payer) list(signals bool) *[]*waiter {
	if signals {
		return &p.signals
	}
	return &p.rest
}

// dequeue removes a waiter. s.mu is held.
func (s *Slots) dequeue(w *waiter) {
	p := s.payers[w.Payer]
	list := p.list(w.Signal)
	at := slices.Index(*list, w)
	*list = slices.Delete(*list, at, at+1)
	if w.MaxWaiting > 0 {
		p.bounded--
		s.bounded--
	}
	if !p.waits() {
		s.order = slices.DeleteFunc(s.order, func(name string) bool { return name == w.Payer })
		s.forget(w.Payer)
	}
}

// forget removes a payer that has no requests. s.mu is held.
func (s *Slots) forget(name string) {
	if p := s.payers[name]; p.held == 0 && !p.waits() {
		delete(s.payers, name)
	}
}

// free frees a slot, and gives it to the next waiter. s.mu is held.
func (s *Slots) free(r Request) {
	p := s.payers[r.Payer]
	s.held--
	p.held--
	if !r.Signal {
		s.others--
		p.others--
	}
	s.forget(r.Payer)
	s.grant()
}

// mayHold reports whether a payer may have one more slot. s.mu is held.
func (s *Slots) mayHold(p *payer, signal bool) bool {
	others := s.cfg.Share - s.cfg.Share*s.cfg.ForSignals/max(1, s.cfg.Slots) // of one payer
	return p.held < s.cfg.Share && (signal || s.others < s.cfg.Slots-s.cfg.ForSignals && p.others < others)
}

// grant gives the free slots to waiters. s.mu is held.
func (s *Slots) grant() {
	for s.held < s.cfg.Slots {
		w := s.next()
		if w == nil {
			return
		}
		p := s.payers[w.Payer]
		s.held++
		p.held++
		if !w.Signal {
			s.others++
			p.others++
		}
		p.signalBefore = w.Signal
		s.dequeue(w)
		if p.waits() { // to the end of the line
			at := slices.Index(s.order, w.Payer)
			s.order = append(slices.Delete(s.order, at, at+1), w.Payer)
		}
		close(w.granted)
	}
}

// next returns the waiter that gets the next slot; nil if none may have one. s.mu is held.
func (s *Slots) next() *waiter {
	for _, name := range s.order {
		p := s.payers[name]
		for _, signals := range []bool{!p.signalBefore, p.signalBefore} {
			if list := *p.list(signals); len(list) > 0 && s.mayHold(p, signals) {
				return list[0]
			}
		}
	}
	return nil
}

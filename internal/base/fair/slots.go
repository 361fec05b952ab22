// SPDX-License-Identifier: Apache-2.0

// Package fair shares what is scarce among payers, who are namespaces for most: slots of work
// that takes time, and turns in a queue.
package fair

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"
)

// ErrFull is the error of a request that cannot wait, because too many do.
var ErrFull = errors.New("too many queries are waiting; try again later")

// maxWaitingPayers is how many times the bound of one payer's waiting queries is that of all payers.
const maxWaitingPayers = 8

// Config holds the settings of Slots.
type Config struct {
	Slots int // queries that run at the same time
	Share int // of one payer; half of Slots, at least one
	// ForSignals is the number of slots that only signals of GPUAutoscalers use. Of a
	// payer's share it is the same part, rounded down.
	ForSignals int
	// ForLight is the number of those slots that only signals of light payers use: slow queries of any number of others
	// leave them free. A payer is light if it is known that its queries of the last minutes were short. A signal that
	// turns out to be slow loses its slot: see Request.Yield.
	ForLight int
}

// ForWrites returns the settings for writes to the API server, where scaling is the signal: it waits for no other write,
// and those of a namespace are few at a time, so that the API server's queue is short for others if it is slow.
func ForWrites() Config { return Config{Slots: 8, Share: 2, ForSignals: 4} }

// What Slots remember of a payer.
const (
	// lightQuery is the time of the longest query of a light payer.
	lightQuery = 250 * time.Millisecond
	// lightLimit is the time after which a light payer's signal has to yield.
	lightLimit = 2 * lightQuery
	// usedHalf is the time after which the used time counts half, and longestHalf that
	// after which the longest query does: one of 5 s is remembered for four minutes.
	usedHalf    = 10 * time.Second
	longestHalf = time.Minute
	// maxIdle bounds the payers that are remembered.
	maxIdle = 4096
)

// Request is a query that needs a slot.
type Request struct {
	Payer  Payer // whose share it uses
	Signal bool  // of a GPUAutoscaler
	// Yield is called if the query has a slot for light payers and is slow: it has to end
	// soon, and may be repeated, for which it gets another slot. nil: it cannot.
	Yield func()
	// MaxWaiting bounds the waiting requests of the payer that have a bound. 0: none.
	MaxWaiting int
}

// Slots bounds the queries that run at the same time. Each query waits in one queue. A free slot goes to the waiting
// payer that has used the least time lately, and of several to the one that was served longest ago, unless its share is
// used up; within a payer, signals and other queries take turns. Queries other than signals never hold the slots that
// are for signals. It is safe for concurrent use.
type Slots struct {
	cfg Config

	mu      sync.Mutex
	held    int
	others  int // of held, not of signals
	heavy   int // of held, not those for light payers
	bounded int // waiting requests with a bound
	payers  map[Payer]*payer
	order   []Payer // waiting payers, next one first
}

// payer is who holds slots or waits for them, or did.
type payer struct {
	held, others, bounded int
	signals, rest         []*waiter // longest wait first
	signalBefore          bool      // the last slot was for a signal

	used    time.Duration // of slots, at
	longest time.Duration // query that has ended, at
	at      time.Time     // zero: no query has ended
}

type waiter struct {
	Request
	granted  chan struct{}
	began    time.Time     // when it was granted
	estimate time.Duration // that its payer was charged then
	light    bool          // it has a slot for light payers
	limit    *time.Timer   // until it has to yield; nil: it need not
}

// age brings used and longest up to date.
func (p *payer) age(now time.Time) {
	if since := now.Sub(p.at); since > 0 && !p.at.IsZero() {
		p.used = time.Duration(float64(p.used) * math.Exp2(-since.Seconds()/usedHalf.Seconds()))
		p.longest = time.Duration(float64(p.longest) * math.Exp2(-since.Seconds()/longestHalf.Seconds()))
		p.at = now
	}
}

// isLight reports whether a payer's queries are known to be short. It is up to date.
func (p *payer) isLight() bool { return !p.at.IsZero() && p.longest <= lightQuery }

// charge corrects the estimate of a query that has ended. p is up to date.
func (p *payer) charge(w *waiter, now time.Time) {
	took := now.Sub(w.began)
	p.used, p.longest, p.at = max(0, p.used+took-w.estimate), max(p.longest, took), now
}

func (p *payer) waits() bool { return len(p.signals)+len(p.rest) > 0 }

// NewSlots makes free slots.
func NewSlots(cfg Config) *Slots {
	if cfg.Share <= 0 {
		cfg.Share = max(1, cfg.Slots/2)
	}
	return &Slots{cfg: cfg, payers: map[Payer]*payer{}}
}

// Acquire waits for a slot until ctx is done. release frees it. The error is ErrFull or that of ctx.
func (s *Slots) Acquire(ctx context.Context, r Request) (release func(), err error) {
	w := &waiter{Request: r, granted: make(chan struct{})}
	s.mu.Lock()
	if !s.enqueue(w) {
		s.mu.Unlock()
		return nil, ErrFull
	}
	s.grant()
	s.mu.Unlock()
	select {
	case <-w.granted:
		return s.releaseOf(w), nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-w.granted: // in the meantime
		s.free(w)
	default:
		s.dequeue(w)
		s.grant() // of the payer's other kind
	}
	return nil, ctx.Err()
}

func (s *Slots) releaseOf(w *waiter) func() {
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.free(w)
	})
}

// Lightest returns the one of these namespaces with the fewest requests, the first of several; zero if there is none.
func (s *Slots) Lightest(namespaces []string) (best Payer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fewest := -1
	for _, name := range namespaces {
		n, of := 0, Namespace(name)
		if p := s.payers[of]; p != nil {
			n = p.held + len(p.signals) + len(p.rest)
		}
		if fewest < 0 || n < fewest {
			best, fewest = of, n
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
		full := p.bounded >= w.MaxWaiting || p.bounded > 0 && s.bounded >= maxWaitingPayers*w.MaxWaiting
		if !free && full {
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
		s.order = slices.DeleteFunc(s.order, func(of Payer) bool { return of == w.Payer })
		s.forget(w.Payer)
	}
}

// forget removes a payer that has no requests, if nothing is known of it or too many are remembered. s.mu is held.
func (s *Slots) forget(of Payer) {
	if p := s.payers[of]; p.held == 0 && !p.waits() && (p.at.IsZero() || len(s.payers) > maxIdle) {
		delete(s.payers, of)
	}
}

// free frees a slot, and gives it to the next waiter. The payer was charged an estimate before. s.mu is held.
func (s *Slots) free(w *waiter) {
	p, now := s.payers[w.Payer], time.Now()
	s.held--
	p.held--
	if !w.Signal {
		s.others--
		p.others--
	}
	if !w.light {
		s.heavy--
	}
	if w.limit != nil {
		w.limit.Stop()
	}
	p.age(now)
	p.charge(w, now)
	s.forget(w.Payer)
	s.grant()
}

// mayHold reports whether a payer may have one more slot. s.mu is held.
func (s *Slots) mayHold(p *payer, signal bool) bool {
	others := s.cfg.Share - s.cfg.Share*s.cfg.ForSignals/max(1, s.cfg.Slots) // of one payer
	switch {
	case p.held >= s.cfg.Share, (!signal || !p.isLight()) && s.heavy >= s.cfg.Slots-s.cfg.ForLight:
		return false
	}
	return signal || s.others < s.cfg.Slots-s.cfg.ForSignals && p.others < others
}

// grant gives the free slots to waiters. s.mu is held.
func (s *Slots) grant() {
	for s.held < s.cfg.Slots {
		w := s.next()
		if w == nil {
			return
		}
		p := s.payers[w.Payer]
		w.began, w.estimate = time.Now(), p.longest
		w.light = s.heavy >= s.cfg.Slots-s.cfg.ForLight // all others are held
		s.held++
		p.held++
		if !w.Signal {
			s.others++
			p.others++
		}
		switch {
		case !w.light:
			s.heavy++
		case w.Yield != nil:
			w.limit = time.AfterFunc(lightLimit, w.Yield)
		}
		p.used += w.estimate
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
func (s *Slots) next() (best *waiter) {
	now, least := time.Now(), time.Duration(0)
	for _, of := range s.order {
		p := s.payers[of]
		p.age(now)
		for _, signals := range []bool{!p.signalBefore, p.signalBefore} {
			if list := *p.list(signals); len(list) > 0 && s.mayHold(p, signals) {
				if best == nil || p.used < least {
					best, least = list[0], p.used
				}
				break
			}
		}
	}
	return best
}

// SPDX-License-Identifier: Apache-2.0

package fair

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Whoever waits is served in turn by namespace, in order within one.
func TestPayersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(Config{Slots: 2, Share: 2})
		var mu sync.Mutex
		var served []string
		free := map[string][]func(){}
		take := func(ctx context.Context, payer string) {
			go func() {
				if release, err := s.Acquire(ctx, Request{Payer: Namespace(payer)}); err == nil {
					mu.Lock()
					served, free[payer] = append(served, payer), append(free[payer], release)
					mu.Unlock()
				}
			}()
			synctest.Wait() // so that the next one waits behind it
		}
		release := func(payer, want string) {
			t.Helper()
			freeSlot := free[payer][0]
			free[payer] = free[payer][1:]
			freeSlot()
			synctest.Wait()
			if got := strings.Join(served, " "); got != want {
				t.Errorf("served %s, want %s", got, want)
			}
		}
		ctx, giveUp := context.WithCancel(t.Context())
		for _, payer := range []string{"a", "a", "a", "a", "b", "b"} {
			take(t.Context(), payer)
		}
		take(ctx, "c")
		take(t.Context(), "d")
		giveUp()
		synctest.Wait()
		release("a", "a a a") // it waits longest; now it goes to the end of the line
		release("a", "a a a b")
		release("a", "a a a b d")
		release("b", "a a a b d a")
		release("d", "a a a b d a b")
		release("a", "a a a b d a b")
		release("b", "a a a b d a b")
		if s.held != 0 || busy(s)+len(s.order) != 0 {
			t.Errorf("in the end: %+v", s)
		}
	})
}

// Many users of one namespace together get its share, and a second namespace the rest.
func TestUsersOfANamespaceShareItsSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(Config{Slots: 4})
		var running, most int
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 200 { // users
			all.Go(func() {
				release, err := s.Acquire(ctx, Request{Payer: Namespace("crowd"), MaxWaiting: 32})
				if err != nil {
					return
				}
				defer release()
				mu.Lock()
				running++
				most = max(most, running)
				mu.Unlock()
				time.Sleep(5 * time.Second)
				mu.Lock()
				running--
				mu.Unlock()
			})
		}
		synctest.Wait()
		if held, waiting := s.Counts(); held != 2 || waiting != 32 {
			t.Errorf("%d run and %d wait, want 2 and 32", held, waiting)
		}
		began := time.Now()
		release, err := s.Acquire(ctx, Request{Payer: Namespace("other"), MaxWaiting: 32})
		if err != nil || time.Since(began) != 0 {
			t.Errorf("another namespace waits %s: %v", time.Since(began), err)
		}
		if got := s.Lightest([]string{"crowd", "other", "none"}); got != Namespace("none") {
			t.Errorf("%s has the fewest queries", got)
		}
		if got := s.Lightest([]string{"b", "a", "crowd"}); got != Namespace("b") {
			t.Errorf("%s is the first of those with the fewest queries", got)
		}
		release()
		all.Wait()
		if most != 2 {
			t.Errorf("the users ran %d queries at a time, want the namespace's 2", most)
		}
	})
}

// Whatever else floods the slots, a signal gets one that is for signals at once; in its
// own namespace it is next.
func TestAFloodLeavesTheSlotsOfSignals(t *testing.T) {
	for name, cfg := range map[string]Config{"backend": {Slots: 8, Share: 4, ForSignals: 4, ForLight: 1}, "windows": {Slots: 3, Share: 1, ForSignals: 2, ForLight: 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := NewSlots(cfg)
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				for i := range 500 {
					all.Go(func() {
						if release, err := s.Acquire(ctx, Request{Payer: Namespace(fmt.Sprint("ns", i%20))}); err == nil {
							time.Sleep(5 * time.Second)
							release()
						}
					})
				}
				synctest.Wait()
				for i := range 20 {
					began := time.Now()
					release, err := s.Acquire(ctx, Request{Payer: Namespace("quiet"), Signal: true})
					if wait := time.Since(began); err != nil || wait != 0 {
						t.Errorf("signal %d waited %s: %v", i, wait, err)
					}
					time.Sleep(100 * time.Millisecond)
					release()
				}
				began := time.Now()
				release, err := s.Acquire(ctx, Request{Payer: Namespace("ns0"), Signal: true})
				if wait := time.Since(began); err != nil || wait > 5*time.Second {
					t.Errorf("in a namespace with other queries the signal waited %s: %v", wait, err)
				}
				release()
				cancel()
				all.Wait()
			})
		})
	}
}

// In 1,000 random schedules no bound is exceeded, signals have their slots whenever they
// wait, every request is served within one turn of all others, and no slot is lost.
func TestRandomSchedules(t *testing.T) {
	for seed := range uint64(1000) {
		synctest.Test(t, func(t *testing.T) { runSchedule(t, rand.New(rand.NewPCG(seed, 1))) })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func runSchedule(t *testing.T, r *rand.Rand) {
	cfg := Config{Slots: 1 + r.IntN(8)}
	cfg.Share, cfg.ForSignals = 1+r.IntN(cfg.Slots), r.IntN(cfg.Slots)
	cfg.ForLight = r.IntN(1 + cfg.ForSignals)
	s := NewSlots(cfg)
	const payers, each = 4, 6 // so many requests of each payer wait at most
	const longest = time.Second
	var all sync.WaitGroup
	for i := range payers * each {
		request := Request{Payer: Namespace(fmt.Sprint(i % payers)), Signal: r.IntN(2) == 0}
		arrives, takes := time.Duration(r.IntN(3000))*time.Millisecond, time.Duration(1+r.Int64N(int64(longest)))
		patience := time.Hour
		if r.IntN(4) == 0 {
			patience = time.Duration(r.IntN(2000)) * time.Millisecond
		}
		all.Go(func() {
			time.Sleep(arrives)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			release, err := s.Acquire(ctx, request)
			check(t, s)
			if err != nil {
				if patience == time.Hour || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%+v is not served: %v", request, err)
				}
				return
			}
			if waited := time.Since(began(ctx, patience)); waited > payers*each*longest {
				t.Errorf("%+v waited %s", request, waited)
			}
			time.Sleep(takes)
			release()
			check(t, s)
		})
	}
	all.Wait()
	if s.held != 0 || s.others != 0 || s.heavy != 0 || s.bounded != 0 || busy(s)+len(s.order) != 0 {
		t.Errorf("in the end: %+v", s)
	}
}

// busy returns the number of payers with requests.
func busy(s *Slots) (n int) {
	for _, p := range s.payers {
		if p.held > 0 || p.waits() {
			n++
		}
	}
	return n
}

// began returns when a request with this deadline began.
func began(ctx context.Context, patience time.Duration) time.Time {
	deadline, _ := ctx.Deadline()
	return deadline.Add(-patience)
}

// check fails if a bound is exceeded, or a slot is free that a waiter may have.
func check(t *testing.T, s *Slots) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	held, others := 0, 0
	for name, p := range s.payers {
		held, others = held+p.held, others+p.others
		if p.held > s.cfg.Share {
			t.Errorf("payer %s holds %d of %d", name, p.held, s.cfg.Share)
		}
	}
	if held != s.held || others != s.others || held > s.cfg.Slots || others > s.cfg.Slots-s.cfg.ForSignals {
		t.Errorf("%d slots are held, %d of them not of signals: %+v", held, others, s.cfg)
	}
	if s.heavy > s.cfg.Slots-s.cfg.ForLight {
		t.Errorf("%d slots are held by heavy payers: %+v", s.heavy, s.cfg)
	}
	// A payer that becomes light while it waits may have the slot for light ones at the next change.
	if w := s.next(); w != nil && held < s.cfg.Slots && s.heavy < s.cfg.Slots-s.cfg.ForLight {
		t.Errorf("%+v waits for a free slot", w.Request)
	}
}

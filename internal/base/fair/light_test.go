// SPDX-License-Identifier: Apache-2.0

package fair

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The times of a hostile tenant's slow queries. One of slowQuery is remembered for as long
// as the attack lasts.
const (
	slowQuery = 4 * lightQuery
	slowest   = 5 * time.Second
)

// Random tenants with any number of slow queries attack the slots for two minutes. A
// signal of a light payer waits for at most one short query of each other light payer. If
// the attackers' queries are short for some time and slow then, it also waits until each
// of them had to yield once, and no more.
func TestHostileTenants(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		for name, cfg := range map[string]Config{"backend": {Slots: 8, Share: 4, ForSignals: 4, ForLight: 1}, "windows": {Slots: 3, Share: 1, ForSignals: 2, ForLight: 1}} {
			synctest.Test(t, func(t *testing.T) {
				changing := seed%2 == 1
				unit := time.Duration(1 + r.Int64N(int64(lightQuery)))
				quiet := 1 + r.IntN(4)
				waited, hostile := attack(t, NewSlots(cfg), r, quiet, unit, changing)
				bound := time.Duration(quiet) * unit
				if changing {
					bound += time.Duration(hostile) * lightLimit
				}
				if waited > bound {
					t.Errorf("seed %d, %s: a signal of %s beside %d others waited %s, want at most %s", seed, name, unit, quiet-1, waited, bound)
				}
			})
		}
	}
}

// attack runs hostile payers beside quiet ones, each of which has a signal that takes one
// unit every second. It returns the longest wait of these, and the number of the others.
func attack(t *testing.T, s *Slots, r *rand.Rand, quiet int, unit time.Duration, changing bool) (longest time.Duration, hostile int) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex
	run := func(payer string, signal bool, takes, pause func() time.Duration) {
		all.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				evaluating, yield := context.WithCancel(ctx)
				release, err := s.Acquire(ctx, Request{Payer: Namespace(payer), Signal: signal, Yield: yield})
				mu.Lock()
				if payer[0] == 'q' {
					longest = max(longest, time.Since(began))
				}
				d, idle := takes(), pause()
				mu.Unlock()
				if err == nil {
					select {
					case <-time.After(d):
					case <-evaluating.Done():
					}
					release()
					time.Sleep(idle)
				}
				yield()
			}
		})
	}
	random := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return r.IntN(n)
	}
	for i := range quiet {
		run(fmt.Sprint("quiet", i), true, func() time.Duration { return unit }, func() time.Duration { return time.Second })
	}
	time.Sleep(2 * time.Second) // each was evaluated
	mu.Lock()
	longest = 0
	mu.Unlock()
	hostile = 1 + random(20)
	for i := range hostile {
		long := func() time.Duration { return slowQuery + time.Duration(r.Int64N(int64(slowest-slowQuery))) }
		takes := long
		if changing {
			takes = func() time.Duration {
				if r.IntN(4) > 0 {
					return time.Duration(1 + r.Int64N(int64(lightQuery)))
				}
				return long()
			}
		}
		for range 1 + random(10) {
			run(fmt.Sprint("hostile", i), random(3) > 0, takes, func() time.Duration { return 0 })
		}
	}
	all.Wait()
	return longest, hostile
}

// Payers with equal queries get equal parts of the slots, and one with few of them goes
// first.
func TestThePayerThatUsedLeastIsNext(t *testing.T) {
	// The order of what happens at one time is random. Over five minutes, one of a hundred runs is more than a fifth off.
	const length = 20 * time.Minute
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(Config{Slots: 1})
		ctx, cancel := context.WithTimeout(t.Context(), length)
		defer cancel()
		var all sync.WaitGroup
		var mu sync.Mutex
		served := map[string]time.Duration{}
		for _, takes := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second} {
			for range 3 {
				all.Go(func() {
					for {
						release, err := s.Acquire(ctx, Request{Payer: Namespace(fmt.Sprint(takes))})
						if err != nil {
							return
						}
						time.Sleep(takes)
						release()
						mu.Lock()
						served[fmt.Sprint(takes)] += takes
						mu.Unlock()
					}
				})
			}
		}
		time.Sleep(time.Minute)
		began := time.Now()
		release, err := s.Acquire(ctx, Request{Payer: Namespace("rare")})
		if wait := time.Since(began); err != nil || wait > 2*time.Second {
			t.Errorf("one that comes rarely waited %s: %v", wait, err)
		}
		release()
		all.Wait()
		for payer, got := range served {
			if third := length / 3; got < third*8/10 || got > third*12/10 {
				t.Errorf("queries of %s had %s of %s, want a third", payer, got, length)
			}
		}
	})
}

// Where many payers fill the queue, one that has no waiting request still may wait.
func TestFullQueueLeavesRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(Config{Slots: 1})
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				if release, err := s.Acquire(ctx, Request{Payer: Namespace(fmt.Sprint("hostile", i%10)), MaxWaiting: 10}); err == nil {
					time.Sleep(time.Second)
					release()
				}
			})
		}
		synctest.Wait()
		release, err := s.Acquire(ctx, Request{Payer: Namespace("quiet"), MaxWaiting: 10})
		if err != nil {
			t.Fatal(err)
		}
		release()
		cancel()
		all.Wait()
	})
}

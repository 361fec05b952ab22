// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Whoever waits is served in turn by namespace, in order within one.
func TestQuerySlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newQuerySlotQueue(2, 2)
		var mu sync.Mutex
		var served []string
		take := func(ctx context.Context, namespace string) {
			go func() {
				if turns.acquire(ctx, namespace) == nil {
					mu.Lock()
					served = append(served, namespace)
					mu.Unlock()
				}
			}()
			synctest.Wait() // so that the next one waits behind it
		}
		want := func(all string) {
			t.Helper()
			synctest.Wait()
			if got := strings.Join(served, " "); got != all {
				t.Errorf("served %s, want %s", got, all)
			}
		}
		ctx, giveUp := context.WithCancel(t.Context())
		for _, ns := range []string{"a", "a", "a", "a", "b", "b"} {
			take(t.Context(), ns)
		}
		take(ctx, "c")
		take(t.Context(), "d")
		want("a a")
		giveUp()
		synctest.Wait()
		turns.release("a")
		want("a a a") // it waits longest; now it goes to the end of the line
		turns.release("a")
		want("a a a b")
		turns.release("a")
		want("a a a b d")
		turns.release("b")
		want("a a a b d a")
		turns.release("d")
		want("a a a b d a b")
		turns.release("a")
		turns.release("b")
		if turns.free != 2 || len(turns.held)+len(turns.waiting)+len(turns.order) != 0 {
			t.Errorf("in the end: %+v", turns)
		}
	})
}

// Whatever is given up, no slot is lost and none is lent twice.
func TestCancelledWaitHoldsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newQuerySlotQueue(4, 3)
		var all sync.WaitGroup
		for i := range 500 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%7)*time.Second)
				defer cancel()
				ns := fmt.Sprint(i % 5)
				if turns.acquire(ctx, ns) != nil {
					return
				}
				turns.mu.Lock()
				if turns.free < 0 || turns.held[ns] > 3 {
					t.Errorf("%d slots are free, %s holds %d", turns.free, ns, turns.held[ns])
				}
				turns.mu.Unlock()
				time.Sleep(time.Duration(i%3) * time.Second)
				turns.release(ns)
			})
		}
		all.Wait()
		if turns.free != 4 || len(turns.held)+len(turns.waiting)+len(turns.order) != 0 {
			t.Errorf("in the end: %+v", turns)
		}
	})
}

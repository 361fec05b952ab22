// SPDX-License-Identifier: Apache-2.0

package fair

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Each does as much at a time as the payer's share and all slots allow, and leaves out the rest when ctx is done.
func TestEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(Config{Slots: 5, Share: 3})
		var mu sync.Mutex
		running, most, ended := map[string]int{}, map[string]int{}, map[string]int{}
		each := func(ctx context.Context, payer string, n int) error {
			return s.Each(ctx, Request{Payer: Namespace(payer), Signal: true}, n, func(int) {
				mu.Lock()
				for _, of := range []string{payer, "all"} {
					running[of]++
					most[of] = max(most[of], running[of])
				}
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				defer mu.Unlock()
				for _, of := range []string{payer, "all"} {
					running[of]--
				}
				ended[payer]++
			})
		}
		var all sync.WaitGroup
		for range 2 { // callers of one payer share its slots
			all.Go(func() {
				if err := each(t.Context(), "a", 12); err != nil {
					t.Error(err)
				}
			})
		}
		began := time.Now()
		if err := each(t.Context(), "b", 4); err != nil || time.Since(began) > 3*time.Second {
			t.Errorf("another payer waits for %v, %v", time.Since(began), err)
		}
		all.Wait()
		if most["a"] != 3 || most["all"] != 5 || ended["a"] != 24 || ended["b"] != 4 {
			t.Errorf("at a time %v, done %v", most, ended)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		if err := each(ctx, "c", 100); !errors.Is(err, context.DeadlineExceeded) || ended["c"] != 6 {
			t.Errorf("%d done when the time had passed: %v", ended["c"], err)
		}
		if n, waiting := s.Counts(); n != 0 || waiting != 0 {
			t.Errorf("%d slots are held, %d wait", n, waiting)
		}
	})
}

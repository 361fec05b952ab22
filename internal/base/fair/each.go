// SPDX-License-Identifier: Apache-2.0

package fair

import (
	"context"
	"sync"
)

// Together returns slots for the requests of one caller, who pays for all of them: n at a time.
func Together(n int) *Slots { return NewSlots(Config{Slots: n, Share: n}) }

// Each calls f for 0 to n-1, each in a slot of the payer and in a goroutine of its own, and waits for all. If ctx is
// done or too many wait, it leaves out the rest and returns the error.
func (s *Slots) Each(ctx context.Context, r Request, n int, f func(i int)) error {
	var all sync.WaitGroup
	defer all.Wait()
	for i := range n {
		done, err := s.Acquire(ctx, r)
		if err != nil {
			return err
		}
		all.Go(func() {
			defer done()
			f(i)
		})
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"testing"
	"testing/synctest"
)

// A task runs in each term, its context ends with the term, and a term that begins twice
// does not disturb it.
func TestTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var term Term
		started, ended := 0, 0
		done := make(chan struct{})
		go func() {
			defer close(done)
			term.Run(ctx, func(ctx context.Context) {
				started++
				<-ctx.Done()
				ended++
			})
		}()
		expect := func(when string, wantStarted, wantEnded int) {
			t.Helper()
			synctest.Wait()
			if started != wantStarted || ended != wantEnded {
				t.Fatalf("%s: started %d, ended %d, want %d, %d", when, started, ended, wantStarted, wantEnded)
			}
		}
		expect("before the first term", 0, 0)
		term.Set(false)
		expect("after an end without a term", 0, 0)
		term.Begin()
		expect("in the first term", 1, 0)
		term.Begin()
		expect("after a second begin", 1, 0)
		term.Set(false)
		expect("after the first term", 1, 1)
		term.Begin()
		expect("in the second term", 2, 1)
		cancel()
		<-done
		expect("after Run", 2, 2)
	})
}

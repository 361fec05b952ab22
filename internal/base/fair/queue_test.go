// SPDX-License-Identifier: Apache-2.0

package fair

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// Random items: each namespace's come out in their order, none is lost, and between two of
// one namespace every other one that waits has its turn.
func TestQueue(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		var (
			q       Queue[string]
			put     = map[string]int{}
			taken   = map[string]int{}
			waiting = map[string]int{} // items of others taken since the namespace waits
		)
		for range 500 {
			if ns := fmt.Sprint(random.IntN(5)); random.IntN(2) == 0 {
				if q.LenOf(Namespace(ns)) == 0 {
					waiting[ns] = 0
				}
				q.Put(Namespace(ns), fmt.Sprint(ns, "/", put[ns]))
				put[ns]++
				continue
			}
			total := 0
			for ns, n := range put {
				total += n - taken[ns]
			}
			x, ok := q.Take()
			if ok != (total > 0) || q.Len() != max(total-1, 0) {
				t.Fatalf("seed %d: %q, %t, %d left, of %d", seed, x, ok, q.Len(), total)
			}
			if len(q.items) != len(q.order) || q.Len() == 0 && len(q.items) > 0 {
				t.Fatalf("seed %d: %d namespaces are kept, %d wait", seed, len(q.items), len(q.order))
			}
			if !ok {
				continue
			}
			ns := x[:1]
			if want := fmt.Sprint(ns, "/", taken[ns]); x != want {
				t.Fatalf("seed %d: %s, want %s", seed, x, want)
			}
			taken[ns]++
			waiting[ns] = 0
			for other := range put {
				if other == ns || q.LenOf(Namespace(other)) == 0 {
					continue
				}
				if waiting[other]++; waiting[other] > 4 {
					t.Fatalf("seed %d: %s waits for %d items", seed, other, waiting[other])
				}
			}
		}
	}
}

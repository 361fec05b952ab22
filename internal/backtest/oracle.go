// SPDX-License-Identifier: Apache-2.0

package backtest

import "math"

// fixed keeps a number of replicas.
type fixed struct{ n int }

func (f fixed) decide(*cluster, int) (int, []string) { return f.n, nil }

// oracle knows the load that will come. For each k it has a k-th replica
// serving whenever at least k are needed, keeps it where the pause is shorter
// than a new start would take, and starts it in time.
type oracle struct{ want []int } // by second

// newOracle plans for replicas that are loaded to the share headroom of what
// their limits let them take.
func newOracle(need []float64, seconds int, headroom float64, lead float64, minimum, maximum int) *oracle {
	o := &oracle{want: make([]int, seconds+1)}
	peak := 0
	for _, x := range need {
		peak = max(peak, ceil(x/headroom))
	}
	// A second's headroom of bins on either side, because requests stay a while.
	bins := func(s float64) int { return int(math.Ceil(s / needSeconds)) }
	for k := 1; k <= min(peak, maximum); k++ {
		until := -1 // bin up to which the k-th replica is kept
		for i, x := range need {
			if ceil(x/headroom) < k {
				continue
			}
			from := i - bins(lead)
			if until >= 0 && from <= until+1 {
				from = until + 1
			}
			until = max(until, i+1)
			for b := max(0, from); b <= until; b++ {
				o.fill(b, k)
			}
		}
	}
	for i := range o.want {
		o.want[i] = max(o.want[i], minimum)
	}
	return o
}

func (o *oracle) fill(bin, k int) {
	for s := bin * needSeconds; s < min((bin+1)*needSeconds, len(o.want)); s++ {
		o.want[s] = max(o.want[s], k)
	}
}

func (o *oracle) decide(_ *cluster, now int) (int, []string) {
	return o.want[min(now, len(o.want)-1)], nil
}

// reactive knows what each request costs, and the load up to now: what an
// autoscaler could do that had learned everything but the future. It follows
// the need of the last bins at once upward, and downward as their most.
type reactive struct {
	need     []float64
	headroom float64
	window   int // seconds
	min, max int
}

func (r *reactive) decide(_ *cluster, now int) (int, []string) {
	last := min(now/needSeconds-1, len(r.need)-1) // the last bin that is over
	if last < 0 {
		return -1, nil
	}
	want := 0
	for i := max(0, last-r.window/needSeconds); i <= last; i++ {
		want = max(want, ceil(r.need[i]/r.headroom))
	}
	return min(max(want, r.min), r.max), nil
}

// ceil is a number of replicas that is enough.
func ceil(x float64) int { return int(math.Ceil(min(x, 1e6))) }

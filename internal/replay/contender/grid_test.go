// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"slices"
	"testing"
)

// The settings of published results are close together: the next target is at most one
// request, a quarter or 5 percentage points higher, and windows are from 0 to 1800 s.
func TestFullGridHasNoGaps(t *testing.T) {
	g := FullGrid()
	if n := len(g.Requests); n < 12 || g.Requests[0] != 1 || g.Requests[n-1] != 16 {
		t.Errorf("targets %v: want at least 12 from 1 to 16", g.Requests)
	}
	for i := 1; i < len(g.Requests); i++ {
		if step := g.Requests[i] - g.Requests[i-1]; step > max(1, g.Requests[i-1]/4) {
			t.Errorf("targets %g and %g are %g apart", g.Requests[i-1], g.Requests[i], step)
		}
	}
	if n := len(g.Utilisation); n < 12 || g.Utilisation[0] != 30 || g.Utilisation[n-1] != 90 {
		t.Errorf("utilisation %v: want at least 12 from 30 to 90", g.Utilisation)
	}
	for i := 1; i < len(g.Utilisation); i++ {
		if step := g.Utilisation[i] - g.Utilisation[i-1]; step > 5 {
			t.Errorf("utilisation %g and %g are %g apart", g.Utilisation[i-1], g.Utilisation[i], step)
		}
	}
	if want := []int{0, 60, 120, 300, 600, 900, 1800}; !slices.Equal(g.Windows, want) {
		t.Errorf("windows %v, want %v", g.Windows, want)
	}
}

// Each setting occurs once, in the class that was asked for.
func TestGridClasses(t *testing.T) {
	for class, want := range map[Class]int{OnRequests: 5*12*7*2*2 + 12*4*7, OnGPU: 6 * 13 * 7 * 2 * 2} {
		names := map[string]bool{}
		for _, p := range FullGrid().Peers(nil, class) {
			names[p.Name] = true
			if p.Class != class {
				t.Errorf("%s is of class %q, not %q", p.Name, p.Class, class)
			}
		}
		if len(names) != want {
			t.Errorf("%d settings of class %q, want %d", len(names), class, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"slices"
	"testing"

	"github.com/gpupilot/gpupilot/internal/replay/service"
)

func TestCompare(t *testing.T) {
	a, b, c := &candidate{violations: 0.5, gpuHours: 10}, &candidate{violations: 0.1, gpuHours: 12}, &candidate{violations: 3, gpuHours: 5}
	f := func(x, y *candidate, allowed float64, want int) {
		t.Helper()
		if got := x.compare(y, allowed); got != want || y.compare(x, allowed) != -want {
			t.Errorf("%+v before %+v at %g: %d, want %d", x, y, allowed, got, want)
		}
	}
	f(a, b, 1, -1)   // both meet the objective: the cheaper first
	f(a, c, 1, -1)   // only one meets it
	f(a, b, 0.01, 1) // none meets it: the one that misses less first
	f(a, c, 5, 1)
}

func TestObjectivesThatAreTried(t *testing.T) {
	for allowed, want := range map[float64][]float64{1: {99.5, 99, 98}, 0.01: {99.99, 99.98}, 40: {80, 60, 50}} {
		if got := objectives(allowed); !slices.Equal(got, want) {
			t.Errorf("%g %% allowed: %v, want %v", allowed, got, want)
		}
	}
}

// A policy that is best on the mean of all replays may owe it to the one that it is judged
// by: without it, another would be chosen.
func TestOutOfSample(t *testing.T) {
	with := func(hours float64, missed ...float64) *candidate {
		c := &candidate{}
		for _, m := range missed {
			c.replays = append(c.replays, Result{Outcome: service.Outcome{Violations: m, GPUHours: hours}})
		}
		c.count()
		return c
	}
	// Without the first replay the cheap one looks safe, and misses it.
	s := &Search{allowed: 1, candidates: []*candidate{with(10, 2, 0.1, 0.1), with(20, 0.1, 0.1, 0.1)}}
	if got := s.outOfSample(3); got != 2 {
		t.Errorf("%d of 3 kept, want 2", got)
	}
}

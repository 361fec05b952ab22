// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"math"
	"testing"
)

func TestFront(t *testing.T) {
	front := NewFront([]Point{{"a", 10, 8, 0}, {"b", 20, 4, 0}, {"worse", 20, 5, 0}, {"dominated", 25, 4, 0}, {"c", 40, 0, 0}})
	names := ""
	for _, m := range front {
		names += m.Name
	}
	if names != "abc" {
		t.Errorf("the front is %q, want abc", names)
	}
	for at, want := range map[float64]float64{5: 8, 10: 8, 15: 6, 20: 4, 30: 2, 40: 0, 99: 0} {
		if got := front.ViolationsAt(at); math.Abs(got-want) > 1e-12 {
			t.Errorf("the front at %g GPU-hours: %g, want %g", at, got, want)
		}
	}
	if got := front.Ratio(Point{GPUHours: 30, Violations: 1}); math.Abs(got-1.1/2.1) > 1e-12 {
		t.Errorf("ratio %g", got)
	}
	for ours, want := range map[Point]Outside{
		{GPUHours: 9.9, Violations: 30}: Cheaper, {GPUHours: 9.9, Violations: 1}: Cheaper, {GPUHours: 10, Violations: 30}: "",
		{GPUHours: 30, Violations: 0}: "", {GPUHours: 41, Violations: 0}: "", {GPUHours: 41, Violations: 2}: "",
	} {
		if got := front.Outside(ours); got != want {
			t.Errorf("%+v is outside of the front: %q, want %q", ours, got, want)
		}
	}
	if got := front[:2].Outside(Point{GPUHours: 41, Violations: 1}); got != KeepsMore {
		t.Errorf("fewer violations for more GPU-hours: %q", got)
	}
	if got := Front(nil).Outside(Point{}); got != "" {
		t.Errorf("outside of no front: %q", got)
	}
	if got := Front(nil).ViolationsAt(3); got != 100 {
		t.Errorf("no front: %g", got)
	}
}

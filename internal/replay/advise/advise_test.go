// SPDX-License-Identifier: Apache-2.0

package advise

import "testing"

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

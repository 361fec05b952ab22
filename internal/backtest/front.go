// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"cmp"
	"slices"
)

// Mark is a result as a point: what it cost and whom it failed.
type Mark struct {
	Name       string  `json:"name"`
	GPUHours   float64 `json:"gpuHours"`
	Violations float64 `json:"violationsPercent"`
	Turns      float64 `json:"turnsPerHour"`
}

func markOf(r *Result) Mark { return Mark{r.Name, r.GPUHours, r.Violations, r.Turns} }

// Front is the Pareto front of marks: for fewer GPU-hours none has fewer
// violations. It rises in GPU-hours and falls in violations.
func Front(marks []Mark) []Mark {
	sorted := slices.Clone(marks)
	slices.SortFunc(sorted, func(a, b Mark) int {
		return cmp.Or(cmp.Compare(a.GPUHours, b.GPUHours), cmp.Compare(a.Violations, b.Violations))
	})
	var out []Mark
	for _, m := range sorted {
		if n := len(out); n == 0 || m.Violations < out[n-1].Violations {
			out = append(out, m)
		}
	}
	return out
}

// FrontAt is the front's violations at these GPU-hours: interpolated between
// its points, and its ends' beyond them.
func FrontAt(front []Mark, gpuHours float64) float64 {
	i, found := slices.BinarySearchFunc(front, gpuHours, func(m Mark, g float64) int { return cmp.Compare(m.GPUHours, g) })
	switch {
	case len(front) == 0:
		return 100
	case found || i == 0:
		return front[min(i, len(front)-1)].Violations
	case i == len(front):
		return front[i-1].Violations
	}
	a, b := front[i-1], front[i]
	part := (gpuHours - a.GPUHours) / (b.GPUHours - a.GPUHours)
	return a.Violations + part*(b.Violations-a.Violations)
}

// grace keeps a ratio of small percentages from being a ratio of luck: a tenth
// of a percentage point on either side.
const grace = 0.1

// Ratio is ours against the front at our GPU-hours: below 1 is better.
func Ratio(front []Mark, ours Mark) float64 {
	return (ours.Violations + grace) / (FrontAt(front, ours.GPUHours) + grace)
}

// Nearest is the front's point with the most similar GPU-hours.
func Nearest(front []Mark, gpuHours float64) (Mark, bool) {
	if len(front) == 0 {
		return Mark{}, false
	}
	return slices.MinFunc(front, func(a, b Mark) int {
		return cmp.Compare(abs(a.GPUHours-gpuHours), abs(b.GPUHours-gpuHours))
	}), true
}

func abs(x float64) float64 { return max(x, -x) }

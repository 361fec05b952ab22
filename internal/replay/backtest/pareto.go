// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"cmp"
	"math"
	"slices"
)

// Point is a result as a point: its cost and its violations.
type Point struct {
	Name       string  `json:"name"`
	GPUHours   float64 `json:"gpuHours"`
	Violations float64 `json:"violationsPercent"`
	Turns      float64 `json:"turnsPerHour"`
}

func pointOf(r *Result) Point { return Point{r.Name, r.GPUHours, r.Violations, r.Turns} }

// Front is a Pareto front: no point has fewer GPU-hours and fewer violations than another.
// It is sorted by increasing GPU-hours, and so by decreasing violations.
type Front []Point

// NewFront returns the Pareto front of points.
func NewFront(points []Point) Front {
	sorted := slices.Clone(points)
	slices.SortFunc(sorted, func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.GPUHours, b.GPUHours), cmp.Compare(a.Violations, b.Violations))
	})
	var out Front
	for _, p := range sorted {
		if n := len(out); n == 0 || p.Violations < out[n-1].Violations {
			out = append(out, p)
		}
	}
	return out
}

// ViolationsAt returns the violations at these GPU-hours. Between points they are
// interpolated, and outside they are those of the first or last point. An empty front has
// 100 %.
func (f Front) ViolationsAt(gpuHours float64) float64 {
	i, found := slices.BinarySearchFunc(f, gpuHours, func(p Point, g float64) int { return cmp.Compare(p.GPUHours, g) })
	switch {
	case len(f) == 0:
		return 100
	case found || i == 0:
		return f[min(i, len(f)-1)].Violations
	case i == len(f):
		return f[i-1].Violations
	}
	a, b := f[i-1], f[i]
	share := (gpuHours - a.GPUHours) / (b.GPUHours - a.GPUHours)
	return a.Violations + share*(b.Violations-a.Violations)
}

// Outside says how a result lies outside of a front, where there is nothing to interpolate.
type Outside string

// The ways to lie outside.
const (
	Cheaper   Outside = "cheaper than every peer setting"
	KeepsMore Outside = "keeps more than any peer setting"
)

// Outside returns how a result lies outside of the front: cheaper than its first point, or
// dearer than its last one with fewer violations. It is "" if the front has a point to
// compare with.
func (f Front) Outside(ours Point) Outside {
	switch n := len(f); {
	case n == 0:
		return ""
	case ours.GPUHours < f[0].GPUHours:
		return Cheaper
	case ours.GPUHours > f[n-1].GPUHours && ours.Violations < f[n-1].Violations:
		return KeepsMore
	}
	return ""
}

// ratioOffset is added to both sides of a ratio, in percentage points. So a ratio of two
// tiny percentages is near 1.
const ratioOffset = 0.1

// Ratio compares violations with those of the front at the same GPU-hours. Below 1 is
// better than the front. It means nothing outside of the front.
func (f Front) Ratio(ours Point) float64 {
	return (ours.Violations + ratioOffset) / (f.ViolationsAt(ours.GPUHours) + ratioOffset)
}

// Nearest returns the point with the most similar GPU-hours; ok is false for an empty front.
func (f Front) Nearest(gpuHours float64) (p Point, ok bool) {
	if len(f) == 0 {
		return Point{}, false
	}
	return slices.MinFunc(f, func(a, b Point) int {
		return cmp.Compare(math.Abs(a.GPUHours-gpuHours), math.Abs(b.GPUHours-gpuHours))
	}), true
}

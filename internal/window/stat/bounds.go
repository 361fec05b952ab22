// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"math"
	"slices"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Bounds say what the value of a member can be that is not known.
type Bounds struct {
	Low, High float64
	// Falls means that more load lowers the value, as with free memory.
	Falls bool
}

// BoundsOf returns the bounds of a field's value: of one GPU, or of a pod, in which
// several GPUs can add up. A nil field is a metric of a pod's own, which has none.
func BoundsOf(f *gpu.Field, ofPod bool) Bounds {
	if f == nil {
		return Bounds{Low: -math.MaxFloat64, High: math.MaxFloat64}
	}
	i, _ := gpu.IndexOf(f.ID)
	r := gpu.RangeAt(i)
	b := Bounds{Low: r.Min, High: r.Max, Falls: f.ID == gpu.FBFree || f.ID == gpu.PState}
	if f.PodAgg == gpu.Rate || ofPod && f.PodAgg != gpu.Mean && f.PodAgg != gpu.Max {
		b.High = math.MaxFloat64
	}
	return b
}

// CanMislead reports whether the statistic of the members so far may show less load than
// there is, if n members have values within bounds that are not known. It is the rule for
// all aggregates: an autoscaler removes replicas when a value is too low, so such a
// statistic is not shown.
//
// The highest values that the unknown members can have are the test, because no statistic
// falls when a value rises.
func (s *Accumulator) CanMislead(n int, b Bounds) bool {
	if n == 0 {
		return false
	}
	known, _, ok := s.Value()
	// Written so that NaN misleads.
	return !ok || !(s.with(n, b.High) <= known.Value) || b.Falls && !(s.with(n, b.Low) >= known.Value)
}

// with returns the statistic if n more members had the value v.
func (s *Accumulator) with(n int, v float64) float64 {
	switch s.Stat.Kind {
	case Sum:
		return s.sum + float64(n)*v
	case Min:
		return min(s.extreme, v)
	case Max:
		return max(s.extreme, v)
	case Percentile:
		if len(s.values) != s.members {
			return v // a member can have any number of samples in a window, so up to all of them are v
		}
		return percentile(append(slices.Clone(s.values), slices.Repeat([]float64{v}, n)...), s.Stat.Percentile)
	}
	return (s.sum + float64(n)*v) / float64(s.members+n)
}

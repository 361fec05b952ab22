// SPDX-License-Identifier: Apache-2.0

package page

import (
	"math"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// OutOfRange counts a page's values that are out of range, by metric.
type OutOfRange []OutOfRangeCount

// OutOfRangeCount is the count of one metric.
type OutOfRangeCount struct {
	Metric string // the name of the field or of the pod's metric
	Values uint64
}

// maxOutOfRange is the number of metrics of one page that are counted separately. The
// others are counted as otherMetrics.
const (
	maxOutOfRange = 32
	otherMetrics  = "other"
)

func (o *OutOfRange) add(metric string) {
	for i := range *o {
		if c := &(*o)[i]; c.Metric == metric {
			c.Values++
			return
		}
	}
	if len(*o) >= maxOutOfRange && metric != otherMetrics {
		o.add(otherMetrics)
		return
	}
	*o = append(*o, OutOfRangeCount{metric, 1})
}

// Total returns the number of values.
func (o OutOfRange) Total() (n int) {
	for _, c := range o {
		n += int(c.Values)
	}
	return n
}

// limit returns a field's value in the field's unit; NaN if it is out of range.
func (o *OutOfRange) limit(e *entry, v float64) float64 {
	x, ok := gpu.RangeAt(e.field).Limit(v * e.scale)
	if ok && !gpu.IsBlank(v) {
		return x
	}
	if v == v { // NaN is a missing value, not one out of range
		o.add(gpu.At(e.field).Name)
	}
	return math.NaN()
}

// limitMetric returns the value of a pod's metric; NaN if it is out of range.
func (o *OutOfRange) limitMetric(m *Metric, v float64) float64 {
	if m.Min == m.Max || v >= m.Min && v <= m.Max {
		return v
	}
	if v == v {
		o.add(m.Name)
	}
	return math.NaN()
}

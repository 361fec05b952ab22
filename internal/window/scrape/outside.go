// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"math"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// outside counts a page's values that are out of range, by the name of the field or
// of the pod's metric.
type outside []outsideCount

type outsideCount struct {
	metric string
	values uint64
}

// maxOutside is the number of metrics of one page that are counted separately. The
// others are counted as otherMetrics.
const (
	maxOutside   = 32
	otherMetrics = "other"
)

func (o *outside) add(metric string) {
	for i := range *o {
		if c := &(*o)[i]; c.metric == metric {
			c.values++
			return
		}
	}
	if len(*o) >= maxOutside && metric != otherMetrics {
		o.add(otherMetrics)
		return
	}
	*o = append(*o, outsideCount{metric, 1})
}

func (o outside) total() (n int) {
	for _, c := range o {
		n += int(c.values)
	}
	return n
}

// limit returns a field's value in the field's unit; NaN if it is out of range.
func (o *outside) limit(e *entry, v float64) float64 {
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
func (o *outside) limitMetric(m *Metric, v float64) float64 {
	if m.Min == m.Max || v >= m.Min && v <= m.Max {
		return v
	}
	if v == v {
		o.add(m.Name)
	}
	return math.NaN()
}

// countOutside adds a page's counts to the scraper's.
func (s *Scraper) countOutside(o outside) {
	if len(o) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range o {
		s.outside[c.metric] += c.values
	}
}

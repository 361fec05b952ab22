// SPDX-License-Identifier: Apache-2.0

package history

import "math"

// Series is a series of a metrics page that a metric of the history continues into the
// past.
type Series struct {
	Name   string
	Labels []string // names and values, in pairs
	Stat   Stat
	Scale  float64 // to the series' unit; counts have none
}

// Stat is which number of a minute a series has.
type Stat int

// The statistics.
const (
	StatMean    Stat = iota
	StatMax          // the highest reading
	StatSum          // the mean times the count
	StatCount        // the mean number of pods or GPUs with a value
	StatRolling      // the mean of the last RollingMinutes, weighted by their counts
)

// RollingMinutes is the time of StatRolling.
const RollingMinutes = 5

// Of returns a statistic of one minute; NaN: it is unknown. That of StatRolling is the
// minute's own.
func (s Stat) Of(v *Value) float64 {
	switch s {
	case StatMax:
		return v.Max
	case StatSum:
		if v.Mean == 0 {
			return 0 // however many there were
		}
		return v.Mean * v.Count
	case StatCount:
		return v.Count
	case StatMean, StatRolling:
		return v.Mean
	}
	return math.NaN()
}

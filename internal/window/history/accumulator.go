// SPDX-License-Identifier: Apache-2.0

package history

import (
	"math"
	"time"
)

// Accumulator aggregates a workload's readings over each minute. The zero value is
// empty. It is not safe for concurrent use.
type Accumulator struct {
	minute  int64 // of sums
	metrics []Metric
	sums    []sum // parallel to metrics

	previous       []Value // of previousMinute, until it is taken
	previousMinute int64
}

// sum is the readings of a metric in a minute.
type sum struct {
	n, counted  int // readings, and those with a count
	total, most float64
	count       float64
}

// Add adds a reading at a time. NaN and infinities are ignored. count is the number of
// pods or GPUs with a value; NaN: it does not apply.
func (a *Accumulator) Add(at time.Time, m Metric, value, count float64) {
	a.AddMax(at, m, value, value, count)
}

// AddMax adds a reading that is the mean of several values, with their maximum.
func (a *Accumulator) AddMax(at time.Time, m Metric, mean, most, count float64) {
	if math.IsNaN(mean) || math.IsInf(mean, 0) {
		return
	}
	a.turn(minuteOf(at))
	s := a.sum(m)
	if s == nil {
		return
	}
	if s.n == 0 || most > s.most {
		s.most = most
	}
	s.n++
	s.total += mean
	if !math.IsNaN(count) {
		s.counted++
		s.count += count
	}
}

// sum returns the sum of a metric; nil if there is no room for it.
func (a *Accumulator) sum(m Metric) *sum {
	for i := range a.metrics {
		if a.metrics[i] == m {
			return &a.sums[i]
		}
	}
	if len(a.metrics) >= MaxMetrics {
		return nil
	}
	a.metrics, a.sums = append(a.metrics, m), append(a.sums, sum{})
	return &a.sums[len(a.sums)-1]
}

// turn ends the minute before.
func (a *Accumulator) turn(minute int64) {
	if minute == a.minute {
		return
	}
	if len(a.metrics) > 0 {
		a.previous, a.previousMinute = a.values(a.previous[:0]), a.minute
	}
	a.minute, a.metrics, a.sums = minute, a.metrics[:0], a.sums[:0]
}

// Take returns the aggregates of the minute that begins at at, if there are any. It is
// called once for each minute, after its end.
func (a *Accumulator) Take(at time.Time) []Value {
	minute := minuteOf(at)
	if a.minute == minute {
		a.turn(minute + 1)
	}
	if a.previousMinute != minute {
		return nil
	}
	a.previousMinute = 0
	return a.previous
}

// values appends the aggregates of the minute.
func (a *Accumulator) values(out []Value) []Value {
	for i, m := range a.metrics {
		s := &a.sums[i]
		v := Value{Metric: m, Mean: s.total / float64(s.n), Max: s.most, Count: math.NaN()}
		if s.counted > 0 {
			v.Count = s.count / float64(s.counted)
		}
		out = append(out, v)
	}
	return out
}

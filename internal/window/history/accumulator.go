// SPDX-License-Identifier: Apache-2.0

package history

import (
	"math"
	"time"
)

// accumulator aggregates a workload's readings over each minute. The zero value is empty.
type accumulator struct {
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

// add adds readings at a time. A mean that is NaN or infinite is no reading. Readings of the
// minute that has just ended are late, and left out.
func (a *accumulator) add(at time.Time, readings []Value) {
	minute := minuteOf(at)
	if minute == a.minute-1 {
		return
	}
	a.turn(minute)
	for i := range readings {
		v := &readings[i]
		if math.IsNaN(v.Mean) || math.IsInf(v.Mean, 0) {
			continue
		}
		s := a.sum(v.Metric)
		if s == nil {
			continue
		}
		if s.n == 0 || v.Max > s.most {
			s.most = v.Max
		}
		s.n++
		s.total += v.Mean
		if !math.IsNaN(v.Count) {
			s.counted++
			s.count += v.Count
		}
	}
}

// sum returns the sum of a metric; nil if there is no room for it.
func (a *accumulator) sum(m Metric) *sum {
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
func (a *accumulator) turn(minute int64) {
	if minute == a.minute {
		return
	}
	if len(a.metrics) > 0 {
		a.previous, a.previousMinute = a.values(a.previous[:0]), a.minute
	}
	a.minute, a.metrics, a.sums = minute, a.metrics[:0], a.sums[:0]
}

// take returns the aggregates of the minute that begins at at, if there are any. It is
// called once for each minute, after its end.
func (a *accumulator) take(at time.Time) []Value {
	minute := minuteOf(at)
	if a.minute == minute {
		a.turn(minute + 1)
	}
	if a.previousMinute != minute {
		return nil
	}
	out := a.previous
	a.previous, a.previousMinute = nil, 0
	return out
}

// values appends the aggregates of the minute.
func (a *accumulator) values(out []Value) []Value {
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

// SPDX-License-Identifier: Apache-2.0

// Package stat computes statistics over the values of pods and GPUs: mean, sum, extremes
// and percentiles.
package stat

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// Kind is a kind of statistic.
type Kind uint8

// The kinds of statistics.
const (
	Default Kind = iota // the field's aggregation; a mean for a metric that is no field
	Mean
	Sum
	Min
	Max
	Percentile
)

// Stat is a statistic over the values of several pods or GPUs.
type Stat struct {
	Kind       Kind
	Percentile int // 0 to 100, of Percentile
}

// String returns the statistic as names of metrics have it; empty for the default.
func (s Stat) String() string {
	if s.Kind == Percentile {
		return "p" + strconv.Itoa(s.Percentile)
	}
	return [...]string{"", "avg", "sum", "min", "max"}[s.Kind]
}

// Parse parses a statistic: avg or mean, sum, min, max, or p1 to p99.
func Parse(s string) (Stat, bool) {
	switch s {
	case "avg", "mean":
		return Stat{Kind: Mean}, true
	case "sum":
		return Stat{Kind: Sum}, true
	case "min":
		return Stat{Kind: Min}, true
	case "max":
		return Stat{Kind: Max}, true
	}
	digits, ok := strings.CutPrefix(s, "p")
	n, err := strconv.ParseUint(digits, 10, 7)
	if !ok || err != nil || n < 1 || n > 99 || digits[0] == '0' {
		return Stat{}, false
	}
	return Stat{Kind: Percentile, Percentile: int(n)}, true
}

// Of returns the statistic of an aggregation. ok is false if the aggregation has
// none.
func Of(a gpu.Aggregation) (s Stat, ok bool) {
	switch a {
	case gpu.Mean:
		return Stat{Kind: Mean}, true
	case gpu.Sum, gpu.Rate:
		return Stat{Kind: Sum}, true
	case gpu.Max:
		return Stat{Kind: Max}, true
	}
	return Stat{}, false
}

// InUse selects GPUs by their use.
type InUse uint8

// The GPUs of a Request.
const (
	AnyGPU       InUse = iota // all; of a pod or a workload, those that are allocated to it
	AllocatedGPU              // those that a running pod owns
	ActiveGPU                 // of these, those with a utilisation above zero within the window, or now without a window
)

// String returns the value of the label in_use.
func (u InUse) String() string { return [...]string{"any", "allocated", "active"}[u] }

// Query selects pods' newest values of a field of their GPUs, or of a metric of their
// own.
type Query struct {
	Field  gpu.FieldID
	Metric string // of the pods' own metrics; empty: Field
	Now    time.Time
	MaxAge time.Duration // older values are absent
}

// Request is a request for one statistic.
type Request struct {
	Query
	Stat   Stat
	Window time.Duration // 0: the newest values
	GPU    string        // the index or the UUID of a GPU; empty: all
	InUse  InUse
}

// From returns the time of the oldest sample in the window, which does not include its
// start, as in PromQL; zero: there is none.
func (q *Request) From() time.Time {
	if q.Window <= 0 {
		return time.Time{}
	}
	return q.Now.Add(-q.Window + 1)
}

// IsSelected reports whether the query's GPU is this one.
func (q *Request) IsSelected(d *series.DeviceWindow) bool {
	if q.GPU == "" || q.GPU == d.Device {
		return true
	}
	return d.Index >= 0 && q.GPU == strconv.Itoa(d.Index)
}

// Accumulator accumulates the values of pods or GPUs, each of which is a list of samples. The
// mean and the sum are those of the members' means over time, so that a member with
// more samples has no more weight. The others are over all samples.
type Accumulator struct {
	Stat    Stat
	members int
	sum     float64
	values  []float64 // of Percentile
	extreme float64
	at      time.Time // the oldest of the members' newest times
	oldest  time.Time // of all samples
}

// Reset empties s for another statistic, and keeps its memory.
func (s *Accumulator) Reset(stat Stat) { *s = Accumulator{Stat: stat, values: s.values[:0]} }

// Add adds a member. It ignores an empty list.
func (s *Accumulator) Add(samples []series.Sample) {
	if len(samples) == 0 {
		return
	}
	sum := 0.0
	for i := range samples {
		v := samples[i].Value
		sum += v
		first := s.members == 0 && i == 0
		switch s.Stat.Kind {
		case Min:
			if first || v < s.extreme {
				s.extreme = v
			}
		case Max:
			if first || v > s.extreme {
				s.extreme = v
			}
		case Percentile:
			s.values = append(s.values, v)
		}
	}
	if newest := samples[len(samples)-1].At; s.members == 0 || newest.Before(s.at) {
		s.at = newest
	}
	if oldest := samples[0].At; s.members == 0 || oldest.Before(s.oldest) {
		s.oldest = oldest
	}
	s.members++
	s.sum += sum / float64(len(samples))
}

// Members returns the number of members that had a value.
func (s *Accumulator) Members() int { return s.members }

// Value returns the statistic, and the time from the oldest sample to the returned
// time. The time is the oldest of the members' newest ones. ok is false without members.
func (s *Accumulator) Value() (v series.Sample, span time.Duration, ok bool) {
	if s.members == 0 {
		return series.Sample{}, 0, false
	}
	v.At = s.at
	switch s.Stat.Kind {
	case Sum:
		v.Value = s.sum
	case Min, Max:
		v.Value = s.extreme
	case Percentile:
		v.Value = percentile(s.values, s.Stat.Percentile)
	default:
		v.Value = s.sum / float64(s.members)
	}
	return v, max(0, s.at.Sub(s.oldest)), true
}

// percentile returns a percentile of values by linear interpolation, as PromQL's
// quantile. It sorts the values.
func percentile(values []float64, p int) float64 {
	slices.Sort(values)
	rank := float64(p) / 100 * float64(len(values)-1)
	low := int(math.Floor(rank))
	high := min(low+1, len(values)-1)
	return values[low] + (values[high]-values[low])*(rank-float64(low))
}

// Value is the answer to a Request.
type Value struct {
	series.Sample
	Span    time.Duration // the time that the samples cover; 0: one value each
	Members int           // serving pods with GPUs, or GPUs; without those that became ready just now
	Have    int           // of them, those with a value
	// Reason says why there is no value; empty: there is one.
	Reason string
}

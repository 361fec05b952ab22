// SPDX-License-Identifier: Apache-2.0

package view

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/history"
)

// The metrics of GPUAutoscalers whose minutes a backtest replays and the page draws.
const (
	ReplicasMetric = "gpupilot_autoscaler_replicas"     // by the label state
	SignalMetric   = "gpupilot_autoscaler_signal_value" // by the label signal
)

// Minutes are the one-minute aggregates of a workload, at regular times.
type Minutes struct {
	First   time.Time      `json:"first"` // the start of the first step
	Step    time.Duration  `json:"step"`  // between two values, in ns
	Metrics []MinuteMetric `json:"metrics"`
}

// MinuteMetric is a metric of a workload. Its lists are equally long.
type MinuteMetric struct {
	Name   string            `json:"name"`             // of the metric on /metrics
	Labels map[string]string `json:"labels,omitempty"` // without those of the workload, and stat
	Mean   Numbers           `json:"mean"`             // over each step
	Max    Numbers           `json:"max"`              // of each step
}

// Steps returns the number of steps.
func (m *Minutes) Steps() (n int) {
	for i := range m.Metrics {
		n = max(n, len(m.Metrics[i].Mean))
	}
	return n
}

// Named returns the metric of a name with these labels, which are names and values in
// pairs, with a value in a step; nil: there is none. It may have more labels.
func (m *Minutes) Named(step int, name string, labels ...string) *MinuteMetric {
	for i := range m.Metrics {
		x := &m.Metrics[i]
		if x.Name == name && x.has(labels) && step < len(x.Mean) && !math.IsNaN(x.Mean[step]) {
			return x
		}
	}
	return nil
}

func (m *MinuteMetric) has(labels []string) bool {
	for i := 0; i+1 < len(labels); i += 2 {
		if m.Labels[labels[i]] != labels[i+1] {
			return false
		}
	}
	return true
}

// Numbers is a list in which NaN means no value: null in JSON.
type Numbers []float64

// MarshalJSON implements json.Marshaler.
func (n Numbers) MarshalJSON() ([]byte, error) {
	out := append(make([]byte, 0, 2+5*len(n)), '[')
	for i, v := range n {
		if i > 0 {
			out = append(out, ',')
		}
		if math.IsNaN(v) || math.IsInf(v, 0) {
			out = append(out, "null"...)
		} else {
			out = strconv.AppendFloat(out, v, 'g', 6, 32)
		}
	}
	return append(out, ']'), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *Numbers) UnmarshalJSON(b []byte) error {
	var list []*float64
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	*n = make(Numbers, len(list))
	for i, v := range list {
		(*n)[i] = math.NaN()
		if v != nil {
			(*n)[i] = *v
		}
	}
	return nil
}

// MinuteQuery selects a part of a workload's minutes.
type MinuteQuery struct {
	Kind     string // of the workload
	From, To time.Time
	Step     time.Duration    // a multiple of a minute
	Metrics  []history.Metric // names, with the labels that the metrics must have; none: all
}

// maxMinuteValues bounds the values of an answer, and so its memory.
const maxMinuteValues = 500_000

// selects reports whether a query wants a metric.
func (q *MinuteQuery) selects(m history.Metric) bool {
	return len(q.Metrics) == 0 || slices.ContainsFunc(q.Metrics, func(want history.Metric) bool { return want.Selects(m) })
}

// Steps returns the number of values of each metric.
func (q *MinuteQuery) Steps() int { return int(q.To.Sub(q.From)/q.Step) + 1 }

// ReadMinutes reads a part of a workload's minutes. A step's mean is the mean over its
// minutes with a value. ok is false if the workload has no minutes.
func ReadMinutes(s *history.Store, w history.Workload, q *MinuteQuery) (out Minutes, ok bool, err error) {
	out = Minutes{First: q.From, Step: q.Step, Metrics: []MinuteMetric{}}
	if _, _, ok = s.Span(w); !ok {
		return out, false, nil
	}
	var names []history.Metric
	for _, m := range s.Metrics(w) {
		if q.selects(m) {
			names = append(names, m)
		}
	}
	if n := q.Steps() * len(names); n > maxMinuteValues {
		return out, true, fmt.Errorf("%d steps of %d metrics are more than %d values: select metrics, or a longer step", q.Steps(), len(names), maxMinuteValues)
	}
	if len(names) == 0 {
		return out, true, nil
	}
	index := make(map[history.Metric]int, len(names))
	for i, m := range names {
		index[m] = i
		out.Metrics = append(out.Metrics, MinuteMetric{m.Name(), maps.Collect(m.Labels()), missingNumbers(q.Steps()), missingNumbers(q.Steps())})
	}
	sums := make([]stepSum, len(names))
	for row := range s.Rows(w, q.From, q.To, names...) {
		step := int(row.At.Sub(q.From) / q.Step)
		for i := range row.Values {
			v := &row.Values[i]
			at := index[v.Metric]
			sums[at].add(&out.Metrics[at], step, v)
		}
	}
	out.Metrics = slices.DeleteFunc(out.Metrics, func(m MinuteMetric) bool {
		return !slices.ContainsFunc(m.Mean, func(v float64) bool { return !math.IsNaN(v) })
	})
	return out, true, nil
}

func missingNumbers(n int) Numbers {
	out := make(Numbers, n)
	for i := range out {
		out[i] = math.NaN()
	}
	return out
}

// stepSum adds up the minutes of a step.
type stepSum struct {
	step  int // of total and n
	n     int
	total float64
}

// add adds a minute to a step of a metric.
func (x *stepSum) add(m *MinuteMetric, step int, v *history.Value) {
	if x.n == 0 || x.step != step {
		*x = stepSum{step: step}
	}
	x.n++
	x.total += v.Mean
	m.Mean[step] = x.total / float64(x.n)
	if most := m.Max[step]; math.IsNaN(most) || v.Max > most {
		m.Max[step] = v.Max
	}
}

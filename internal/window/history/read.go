// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"
	"time"
)

// Workloads returns the workloads with a row, sorted; of all namespaces if none is given.
func (s *Store) Workloads(namespaces ...string) []Workload {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []Workload
	for name, n := range s.namespaces {
		if len(namespaces) > 0 && !slices.Contains(namespaces, name) {
			continue
		}
		for w := range n.workloads {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, compareWorkloads)
	return out
}

func compareWorkloads(a, b Workload) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}

// Namespaces returns the namespaces with a row, sorted.
func (s *Store) Namespaces() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Sorted(maps.Keys(s.namespaces))
}

// Metrics returns the metrics of a workload, sorted. Some may have no value any more.
func (s *Store) Metrics(w Workload) []Metric {
	s.mu.RLock()
	defer s.mu.RUnlock()
	e := s.find(w)
	if e == nil {
		return nil
	}
	out := slices.Clone(e.metrics)
	slices.Sort(out)
	return out
}

// Span returns the first and the last minute of a workload; ok is false if it has none.
func (s *Store) Span(w Workload) (first, last time.Time, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	e := s.find(w)
	if e == nil {
		return first, last, false
	}
	begin, end, ok := e.span()
	return timeOf(begin), timeOf(end), ok
}

// span returns the first and the last minute.
func (e *entry) span() (first, last int64, ok bool) {
	switch {
	case e.head.rows > 0 && len(e.sealed) > 0:
		return int64(e.sealed[0].first), int64(e.head.last), true
	case e.head.rows > 0:
		return int64(e.head.first), int64(e.head.last), true
	case len(e.sealed) > 0:
		return int64(e.sealed[0].first), int64(e.sealed[len(e.sealed)-1].last), true
	}
	return 0, 0, false
}

func (s *Store) find(w Workload) *entry {
	if n := s.namespaces[w.Namespace]; n != nil {
		return n.workloads[w]
	}
	return nil
}

// Rows returns the rows of a workload from one time until another, oldest first; of all
// metrics if none is given. The values of a row are only valid until the next one.
func (s *Store) Rows(w Workload, from, to time.Time, metrics ...Metric) iter.Seq[Row] {
	first, last := ceilMinute(from), minuteOf(to)
	return func(yield func(Row) bool) {
		chunks, names := s.snapshot(w, first, last)
		var values []Value
		var state rowState
		for i := range chunks {
			more := chunks[i].each(&state, func(minute int64, columns []column) bool {
				if minute < first || minute > last {
					return minute <= last
				}
				values = appendValues(values[:0], columns, names, metrics)
				return len(values) == 0 || yield(Row{At: timeOf(minute), Values: values})
			})
			if !more {
				return
			}
		}
	}
}

// Each calls f for the rows of a workload from one time until another, oldest first. The
// values are those of the metrics, in their order; the mean of a missing one is NaN. They
// are reused.
func (s *Store) Each(w Workload, from, to time.Time, metrics []Metric, f func(at time.Time, values []Value)) {
	first, last := ceilMinute(from), minuteOf(to)
	chunks, names := s.snapshot(w, first, last)
	columnOf := make([]int, len(metrics))
	values := make([]Value, len(metrics))
	for i, m := range metrics {
		columnOf[i], values[i].Metric = slices.Index(names, m), m
	}
	var state rowState
	for i := range chunks {
		more := chunks[i].each(&state, func(minute int64, columns []column) bool {
			if minute < first || minute > last {
				return minute <= last
			}
			for j, at := range columnOf {
				t := &absent
				if at >= 0 && at < len(columns) {
					t = &columns[at].last
				}
				values[j].Mean, values[j].Max, values[j].Count = widen(t[0]), widen(t[1]), widen(t[2])
			}
			f(timeOf(minute), values)
			return true
		})
		if !more {
			return
		}
	}
}

// ceilMinute returns the first minute that does not begin before t.
func ceilMinute(t time.Time) int64 {
	m := minuteOf(t)
	if timeOf(m).Before(t) {
		m++
	}
	return m
}

// snapshot returns the chunks with rows in a range, which do not change any more, and
// the names of their columns.
func (s *Store) snapshot(w Workload, first, last int64) (chunks []chunk, names []Metric) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	e := s.find(w)
	if e == nil {
		return nil, nil
	}
	for i := range e.sealed {
		if c := &e.sealed[i]; int64(c.last) >= first && int64(c.first) <= last {
			chunks = append(chunks, *c)
		}
	}
	if h := &e.head; h.rows > 0 && int64(h.last) >= first && int64(h.first) <= last {
		chunks = append(chunks, h.sealed())
	}
	return chunks, e.metrics[:len(e.metrics):len(e.metrics)]
}

// appendValues appends the values of a row, of the selected metrics.
func appendValues(out []Value, columns []column, names, selected []Metric) []Value {
	for i := range columns {
		t := &columns[i].last
		mean := widen(t[0])
		if math.IsNaN(mean) || len(selected) > 0 && !slices.Contains(selected, names[i]) {
			continue
		}
		out = append(out, Value{Metric: names[i], Mean: mean, Max: widen(t[1]), Count: widen(t[2])})
	}
	return out
}

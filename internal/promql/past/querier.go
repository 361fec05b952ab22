// SPDX-License-Identifier: Apache-2.0

package past

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/gpupilot/gpupilot/internal/window/history"
)

// querier reads samples within [mint, maxt], in ms since 1970.
type querier struct {
	storage.Querier // of the windows
	s               *Store
	mint, maxt      int64
	read            reader // of all selections: a query may have hundreds
}

// Select implements storage.Querier.
func (q *querier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	sel := q.selection(hints, matchers)
	if err := sel.run(ctx); err != nil {
		return storage.ErrSeriesSet(err)
	}
	if len(sel.past) == 0 {
		return q.Querier.Select(ctx, sorted, hints, matchers...)
	}
	if hints != nil && hints.By {
		whole := *hints // without the labels of a grouping, a series has no past
		whole.By, whole.Grouping = false, nil
		hints = &whole
	}
	recent := q.Querier.Select(ctx, sorted, hints, matchers...)
	out := &seriesSet{at: -1, warnings: recent.Warnings}
	sel.sort()
	if sel.instant {
		sel.take(out, recent, false)
		// What is left has no value now. If the windows have its end, it is stale; its last
		// minutes would still be within the lookback.
		longer := *hints
		longer.Start--
		recent = q.Querier.Select(ctx, sorted, &longer, matchers...)
	}
	sel.take(out, recent, true)
	sel.takeRest(out)
	if sorted {
		slices.SortFunc(out.list, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
	}
	return out
}

// LabelValues implements storage.LabelQuerier.
func (q *querier) LabelValues(ctx context.Context, name string, hints *storage.LabelHints, matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	found, notes, err := q.Querier.LabelValues(ctx, name, hints, matchers...)
	if err != nil {
		return nil, notes, err
	}
	if name == namespaceLabel && len(matchers) == 0 {
		return union(found, q.s.deps.Minutes.Namespaces(), hints), notes, nil
	}
	sel := q.selection(nil, matchers)
	if err := sel.run(ctx); err != nil {
		return nil, notes, err
	}
	var past []string
	for i := range sel.past {
		if v := sel.past[i].labels.Get(name); v != "" {
			past = append(past, v)
		}
	}
	return union(found, past, hints), notes, nil
}

// LabelNames implements storage.LabelQuerier.
func (q *querier) LabelNames(ctx context.Context, hints *storage.LabelHints, matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	found, notes, err := q.Querier.LabelNames(ctx, hints, matchers...)
	if err != nil {
		return nil, notes, err
	}
	sel := q.selection(nil, matchers)
	if err := sel.run(ctx); err != nil {
		return nil, notes, err
	}
	names := map[string]struct{}{}
	for i := range sel.past {
		sel.past[i].labels.Range(func(l labels.Label) { names[l.Name] = struct{}{} })
	}
	var past []string
	for n := range names {
		past = append(past, n)
	}
	return union(found, past, hints), notes, nil
}

// union returns the values of both lists, sorted.
func union(a, b []string, hints *storage.LabelHints) []string {
	if len(b) == 0 {
		return a
	}
	all := append(slices.Clone(a), b...)
	slices.Sort(all)
	all = slices.Compact(all)
	if hints != nil && hints.Limit > 0 && len(all) > hints.Limit {
		all = all[:hints.Limit]
	}
	return all
}

// namespaceLabel is the label that limits a query to namespaces.
const namespaceLabel = "namespace"

// selection is what matchers select from the history.
type selection struct {
	s        *Store
	from, to int64 // ms since 1970, both included
	instant  bool  // only the newest value is needed
	matchers []*labels.Matcher
	past     []pastSeries
	index    map[labels.Labels]int // in past, of the series that are not in the result yet

	read *reader
}

// pastSeries is a series in the history.
type pastSeries struct {
	labels   labels.Labels
	workload history.Workload
	metric   history.Metric
	stat     history.Stat
}

func (q *querier) selection(hints *storage.SelectHints, matchers []*labels.Matcher) *selection {
	sel := &selection{s: q.s, from: q.mint, to: q.maxt, matchers: matchers, read: &q.read}
	if hints != nil {
		sel.from, sel.to = hints.Start, hints.End
		sel.instant = hints.Range == 0 && hints.Step == 0 && hints.End-hints.Start == q.s.cfg.Lookback.Milliseconds()-1
	}
	return sel
}

// checkEvery is the number of workloads between two looks at the context.
const checkEvery = 256

// run lists the series of the workloads with minutes in the time of the selection.
func (sel *selection) run(ctx context.Context) error {
	wanted := map[string]*history.Family{}
	for i := range sel.s.deps.Families {
		if f := &sel.s.deps.Families[i]; sel.matches(model.MetricNameLabel, f.Name) {
			wanted[f.Name] = f
		}
	}
	namespaces, some := sel.namespaces()
	if len(wanted) == 0 || !some {
		return nil
	}
	b := labels.NewBuilder(labels.EmptyLabels())
	for i, w := range sel.s.deps.Minutes.Workloads(namespaces...) {
		if i%checkEvery == checkEvery-1 && ctx.Err() != nil {
			return ctx.Err()
		}
		if !sel.overlaps(w) {
			continue
		}
		for _, m := range sel.s.deps.Minutes.Metrics(w) {
			if f := wanted[m.Name()]; f != nil && f.Of == w.Subject() {
				sel.add(b, f, w, m)
			}
		}
	}
	return nil
}

// add adds the series of a workload's metric that match.
func (sel *selection) add(b *labels.Builder, f *history.Family, w history.Workload, m history.Metric) {
	sel.s.labelsOf(b, w, m)
	for _, stat := range f.Statistics() {
		if stat != history.StatNone {
			b.Set("stat", string(stat))
		}
		if l := b.Labels(); sel.matchesAll(l) {
			sel.past = append(sel.past, pastSeries{l, w, m, stat})
		}
	}
}

// matches reports whether the matchers of a label match a value.
func (sel *selection) matches(label, value string) bool {
	return !slices.ContainsFunc(sel.matchers, func(m *labels.Matcher) bool { return m.Name == label && !m.Matches(value) })
}

func (sel *selection) matchesAll(l labels.Labels) bool {
	return !slices.ContainsFunc(sel.matchers, func(m *labels.Matcher) bool { return !m.Matches(l.Get(m.Name)) })
}

// namespaces returns the namespaces that the matchers select; empty: all. some is false if
// the history has none of them.
func (sel *selection) namespaces() (list []string, some bool) {
	if !slices.ContainsFunc(sel.matchers, func(m *labels.Matcher) bool { return m.Name == namespaceLabel }) {
		return nil, true
	}
	for _, n := range sel.s.deps.Minutes.Namespaces() {
		if sel.matches(namespaceLabel, n) {
			list = append(list, n)
		}
	}
	return list, len(list) > 0
}

// overlaps reports whether a workload has points in the time of the selection.
func (sel *selection) overlaps(w history.Workload) bool {
	first, last, ok := sel.s.deps.Minutes.Span(w)
	return ok && pointOf(first) <= sel.to && pointOf(last) >= sel.from
}

// pointOf returns the time of a minute's point, its end.
func pointOf(minute time.Time) int64 { return minute.Add(time.Minute).UnixMilli() }

// sort sorts the series, so that those of a workload are read together, and drops equal
// ones.
func (sel *selection) sort() {
	slices.SortFunc(sel.past, func(a, b pastSeries) int { return labels.Compare(a.labels, b.labels) })
	sel.past = slices.CompactFunc(sel.past, func(a, b pastSeries) bool { return labels.Equal(a.labels, b.labels) })
	sel.index = make(map[labels.Labels]int, len(sel.past))
	for i := range sel.past {
		sel.index[sel.past[i].labels] = i
	}
}

// take adds series of the windows: with their past, or as they are. Those of an instant
// query that were added before are left out.
func (sel *selection) take(out *seriesSet, recent storage.SeriesSet, withPast bool) {
	for recent.Next() {
		x := recent.At()
		at, hasPast := sel.index[x.Labels()]
		switch {
		case hasPast:
			delete(sel.index, x.Labels())
			if withPast {
				x = &joined{sel, at, x}
			}
		case sel.instant && withPast:
			continue
		}
		out.list = append(out.list, x)
	}
	if err := recent.Err(); err != nil {
		out.err = err
	}
}

// takeRest adds the series that the windows do not have.
func (sel *selection) takeRest(out *seriesSet) {
	for i := range sel.past {
		if _, left := sel.index[sel.past[i].labels]; left {
			out.list = append(out.list, &joined{sel, i, nil})
		}
	}
}

// seriesSet is a list of series. It implements storage.SeriesSet.
type seriesSet struct {
	list     []storage.Series
	at       int
	err      error
	warnings func() annotations.Annotations
}

// Next implements storage.SeriesSet.
func (s *seriesSet) Next() bool { s.at++; return s.err == nil && s.at < len(s.list) }

// At implements storage.SeriesSet.
func (s *seriesSet) At() storage.Series { return s.list[s.at] }

// Err implements storage.SeriesSet.
func (s *seriesSet) Err() error { return s.err }

// Warnings implements storage.SeriesSet.
func (s *seriesSet) Warnings() annotations.Annotations { return s.warnings() }

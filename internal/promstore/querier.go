// SPDX-License-Identifier: Apache-2.0

package promstore

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/series"
)

// querier reads samples within [mint, maxt], in ms since 1970.
type querier struct {
	s          *Store
	mint, maxt int64
}

// Close implements storage.Querier.
func (q *querier) Close() error { return nil }

// Select implements storage.Querier. The metrics that the matchers name are wanted from
// then on.
func (q *querier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	sel := q.selection(hints, matchers)
	if err := sel.run(ctx); err != nil {
		return storage.ErrSeriesSet(err)
	}
	if sorted {
		slices.SortFunc(sel.found, func(a, b result) int { return labels.Compare(a.labels, b.labels) })
	}
	return &seriesSet{list: sel.found, at: -1}
}

// LabelValues implements storage.LabelQuerier.
func (q *querier) LabelValues(ctx context.Context, name string, hints *storage.LabelHints, matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	set := map[string]struct{}{}
	err := q.each(ctx, matchers, func(l labels.Labels) {
		if v := l.Get(name); v != "" {
			set[v] = struct{}{}
		}
	})
	return sortedSet(set, hints), nil, err
}

// LabelNames implements storage.LabelQuerier.
func (q *querier) LabelNames(ctx context.Context, hints *storage.LabelHints, matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	set := map[string]struct{}{}
	err := q.each(ctx, matchers, func(l labels.Labels) {
		l.Range(func(p labels.Label) {
			if _, ok := set[p.Name]; !ok {
				set[p.Name] = struct{}{}
			}
		})
	})
	return sortedSet(set, hints), nil, err
}

// each calls f with the labels of all series that have samples in the querier's time.
func (q *querier) each(ctx context.Context, matchers []*labels.Matcher, f func(labels.Labels)) error {
	sel := q.selection(nil, matchers)
	sel.labelsOnly = true
	if err := sel.run(ctx); err != nil {
		return err
	}
	for i := range sel.found {
		f(sel.found[i].labels)
	}
	return nil
}

func sortedSet(set map[string]struct{}, hints *storage.LabelHints) []string {
	list := make([]string, 0, len(set))
	for v := range set {
		list = append(list, v)
	}
	slices.Sort(list)
	if hints != nil && hints.Limit > 0 && len(list) > hints.Limit {
		list = list[:hints.Limit]
	}
	return list
}

// selection is one Select.
type selection struct {
	s          *Store
	now        time.Time
	from, to   int64 // ms since 1970, both included
	instant    bool  // only the newest value at to is needed
	labelsOnly bool

	name     string            // that the matchers name; empty: none
	byName   []*labels.Matcher // the other matchers of the name
	matchers []*labels.Matcher // of other labels

	found   []result
	lookups []series.Lookup
}

func (q *querier) selection(hints *storage.SelectHints, matchers []*labels.Matcher) *selection {
	sel := &selection{s: q.s, now: q.s.now(), from: q.mint, to: q.maxt}
	if hints != nil {
		sel.from, sel.to = hints.Start, hints.End
		// An instant query reads exactly the lookback before its time. A subquery
		// reads a longer time.
		sel.instant = hints.Range == 0 && hints.Step == 0 && hints.End-hints.Start == q.s.cfg.Lookback.Milliseconds()-1
	}
	for _, m := range matchers {
		switch {
		case m.Name != model.MetricNameLabel:
			sel.matchers = append(sel.matchers, m)
		case m.Type == labels.MatchEqual && sel.name == "":
			sel.name = m.Value
		default:
			sel.byName = append(sel.byName, m)
		}
	}
	return sel
}

// run collects the series.
func (sel *selection) run(ctx context.Context) error {
	if sel.name != "" && !sel.labelsOnly {
		sel.s.Want(sel.name)
	}
	sel.s.refresh()
	sel.s.index.mu.RLock()
	defer sel.s.index.mu.RUnlock()
	if sel.wants(upName) {
		if err := sel.addUp(ctx); err != nil {
			return err
		}
	}
	sel.s.pods.add(sel)
	if sel.name == "" {
		for _, m := range sel.s.index.names {
			if sel.wants(m.name) {
				if err := sel.addMetric(ctx, m, nil, 0); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if !matchesAll(sel.byName, sel.name) {
		return nil
	}
	exact := sel.s.index.names[sel.name]
	if exact != nil {
		if err := sel.addMetric(ctx, exact, nil, 0); err != nil {
			return err
		}
	}
	return sel.addAliases(ctx, exact)
}

// wants reports whether the matchers select series of a name.
func (sel *selection) wants(name string) bool {
	return (sel.name == "" || sel.name == name) && matchesAll(sel.byName, name)
}

func matchesAll(matchers []*labels.Matcher, value string) bool {
	for _, m := range matchers {
		if !m.Matches(value) {
			return false
		}
	}
	return true
}

// addAliases adds the series of the field that the selected name names in another
// profile, of targets without series of the exact name.
func (sel *selection) addAliases(ctx context.Context, exact *metric) error {
	ref, ok := names.Resolve(sel.name)
	if !ok {
		return nil
	}
	for _, name := range sel.s.index.fields[ref.Field] {
		if m := sel.s.index.names[name]; m != nil && m != exact {
			if err := sel.addMetric(ctx, m, exact, ref.Scale); err != nil {
				return err
			}
		}
	}
	return nil
}

// addMetric adds the series of one name, without those of targets that exact has. If
// scale is not 0, they get the selected name, and their values are in its unit.
func (sel *selection) addMetric(ctx context.Context, m, exact *metric, scale float64) error {
	n := 0
	add := func(t *target, list []*entry) error {
		if n++; n%512 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if exact == nil || exact.targets[t] == nil {
			sel.addTarget(t, list, scale)
		}
		return nil
	}
	if few, ok := sel.s.index.candidates(sel.matchers); ok && len(few) < len(m.targets) {
		for _, t := range few {
			if err := add(t, m.targets[t]); err != nil {
				return err
			}
		}
		return nil
	}
	if len(sel.matchers) == 0 {
		count := 0
		for _, list := range m.targets {
			count += len(list)
		}
		sel.found = slices.Grow(sel.found, count)
	}
	for t, list := range m.targets {
		if err := add(t, list); err != nil {
			return err
		}
	}
	return nil
}

// addTarget adds those of a target's series of one name that the matchers select.
func (sel *selection) addTarget(t *target, list []*entry, scale float64) {
	first := len(sel.found)
	for _, e := range list {
		if scale != 0 && e.parts[0].Field == 0 {
			continue
		}
		l := sel.s.shownAs(e, sel.now)
		if !sel.matches(l) || !e.overlaps(sel.from*int64(time.Millisecond), (sel.to+1)*int64(time.Millisecond)) {
			continue
		}
		r := result{sel: sel, labels: l, target: t, entry: e}
		if scale != 0 {
			r.scale = scale
			b := labels.NewBuilder(l)
			b.Set(model.MetricNameLabel, sel.name)
			r.labels = b.Labels()
		}
		sel.found = append(sel.found, r)
	}
	if sel.instant && !sel.labelsOnly {
		sel.found = append(sel.found[:first], sel.withValue(t, sel.found[first:])...)
	}
}

func (sel *selection) matches(l labels.Labels) bool {
	for _, m := range sel.matchers {
		if !m.Matches(l.Get(m.Name)) {
			return false
		}
	}
	return true
}

func (e *entry) overlaps(from, to int64) bool {
	return slices.ContainsFunc(e.parts, func(x series.Exposure) bool { return x.From < to && x.Until > from })
}

// withValue reads the newest value of a target's series, and returns those that have
// one which is not stale.
func (sel *selection) withValue(t *target, list []result) []result {
	const ms = int64(time.Millisecond)
	at := sel.to*ms + ms - 1
	kept := list[:0]
	sel.lookups = sel.lookups[:0]
	for i := range list {
		if part := list[i].entry.partAt(at); part != nil {
			kept = append(kept, list[i])
			sel.lookups = append(sel.lookups, series.Lookup{Exposure: part, Scale: list[i].scaleOf(part)})
		}
	}
	t.window.ReadLast(sel.lookups, sel.to*ms-int64(t.window.Keep(sel.s.cfg.MinAge)), at)
	list, kept = kept, kept[:0]
	for i := range list {
		if x := &sel.lookups[i]; x.Stamp != 0 {
			list[i].stamp, list[i].value = x.Stamp/int64(time.Millisecond), x.Value
			kept = append(kept, list[i])
		}
	}
	return kept
}

// partAt returns the part of a series that its page shows at a time.
func (e *entry) partAt(at int64) *series.Exposure {
	for i := len(e.parts) - 1; i >= 0; i-- {
		if p := &e.parts[i]; p.From <= at && at < p.Until {
			return p
		}
	}
	return nil
}

// addUp adds the series up of the targets.
func (sel *selection) addUp(ctx context.Context) error {
	targets, ok := sel.s.index.candidates(sel.matchers)
	if !ok {
		for _, t := range sel.s.index.targets {
			targets = append(targets, t)
		}
	}
	for i, t := range targets {
		if i%512 == 511 && ctx.Err() != nil {
			return ctx.Err()
		}
		if sel.matches(t.up) {
			sel.addVirtual(result{sel: sel, labels: t.up, target: t})
		}
	}
	return nil
}

// addVirtual adds a series that is not in the windows.
func (sel *selection) addVirtual(r result) {
	if sel.instant && !sel.labelsOnly {
		samples := r.samples(nil)
		if len(samples) == 0 || isStale(samples[len(samples)-1].v) {
			return
		}
		last := samples[len(samples)-1]
		r.stamp, r.value = last.t, last.v
	}
	sel.found = append(sel.found, r)
}

// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
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
	sel := q.selection(sorted, hints, matchers)
	if err := sel.run(ctx); err != nil {
		return storage.ErrSeriesSet(err)
	}
	set := &seriesSet{points: sel.points, results: sel.found, at: -1}
	if sorted {
		set.sort()
	}
	return set
}

// LabelValues implements storage.LabelQuerier.
func (q *querier) LabelValues(ctx context.Context, name string, hints *storage.LabelHints, matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	set := map[string]struct{}{}
	err := q.each(ctx, name, matchers, func(l labels.Labels) {
		if v := l.Get(name); v != "" {
			set[v] = struct{}{}
		}
	})
	return sortedSet(set, hints), nil, err
}

// LabelNames implements storage.LabelQuerier.
func (q *querier) LabelNames(ctx context.Context, hints *storage.LabelHints, matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	set := map[string]struct{}{}
	err := q.each(ctx, "", matchers, func(l labels.Labels) {
		l.Range(func(p labels.Label) {
			if _, ok := set[p.Name]; !ok {
				set[p.Name] = struct{}{}
			}
		})
	})
	return sortedSet(set, hints), nil, err
}

// each calls f with the labels of all series that have samples in the querier's time.
// name is the label that f reads; empty: all.
func (q *querier) each(ctx context.Context, name string, matchers []*labels.Matcher, f func(labels.Labels)) error {
	sel := q.selection(true, nil, matchers)
	sel.labelsOnly = true
	_, asked := page.ExportedOwner(name)
	sel.exported = sel.exported || asked
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

	// exported is true if the query asks for the owner of a GPU as exported_pod and so on.
	// Then verified owners have both names.
	exported bool

	// grouping is where the labels are that the query needs of each series, if these are
	// few; nil: all.
	grouping *grouping

	found   []result // series that are read by an iterator
	points  []point  // and those of one value
	lookups []series.Lookup
}

func (q *querier) selection(sorted bool, hints *storage.SelectHints, matchers []*labels.Matcher) *selection {
	sel := &selection{s: q.s, now: q.s.now(), from: q.mint, to: q.maxt}
	if hints != nil {
		sel.from, sel.to = hints.Start, hints.End
		// An instant query reads exactly the lookback before its time. A subquery
		// reads a longer time.
		sel.instant = hints.Range == 0 && hints.Step == 0 && hints.End-hints.Start == q.s.cfg.Lookback.Milliseconds()-1
		if !sorted {
			sel.grouping = q.s.index.groupings.of(hints, sel.now)
		}
		sel.exported = hints.By && slices.ContainsFunc(hints.Grouping, isExportedOwner)
	}
	for _, m := range matchers {
		sel.exported = sel.exported || isExportedOwner(m.Name)
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

func isExportedOwner(name string) bool {
	_, ok := page.ExportedOwner(name)
	return ok
}

// run collects the series.
func (sel *selection) run(ctx context.Context) error {
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
	add := func(p *part) error {
		if n++; n%512 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if p != nil && (exact == nil || exact.of(p.target) == nil) {
			sel.addPart(p, scale)
		}
		return nil
	}
	if few, ok := sel.s.index.candidates(sel.matchers, IsScraped(m.name)); ok && len(few) < len(m.parts) {
		for _, t := range few {
			if err := add(m.of(t)); err != nil {
				return err
			}
		}
		return nil
	}
	if len(sel.matchers) == 0 {
		sel.grow(m.parts)
	}
	for _, p := range m.parts {
		if err := add(p); err != nil {
			return err
		}
	}
	return nil
}

// grow makes room for all series of the parts.
func (sel *selection) grow(parts []*part) {
	n := 0
	for _, p := range parts {
		n += len(p.entries)
	}
	if sel.onlyNewest() {
		sel.points = slices.Grow(sel.points, n)
	} else {
		sel.found = slices.Grow(sel.found, n)
	}
}

// onlyNewest reports whether the selection is of one value for each series.
func (sel *selection) onlyNewest() bool { return sel.instant && !sel.labelsOnly }

// addPart adds those of a target's series of one name that the matchers select.
func (sel *selection) addPart(p *part, scale float64) {
	short := sel.s.index.groupings.labelsFor(p, sel.grouping)
	if sel.onlyNewest() {
		sel.addNewest(p, scale, short)
		return
	}
	for i := range p.entries {
		e := &p.entries[i]
		if !e.overlaps(sel.from*int64(time.Millisecond), (sel.to+1)*int64(time.Millisecond)) {
			continue
		}
		if l, ok := sel.labelsOf(e, scale, short.at(i)); ok {
			sel.found = append(sel.found, result{sel: sel, labels: l, target: p.target, entry: e, scale: scale})
		}
	}
}

// addNewest adds the newest values of a target's series, of those that have one which
// is not stale.
func (sel *selection) addNewest(p *part, scale float64, short *shortLabels) {
	const ms = int64(time.Millisecond)
	at := sel.to*ms + ms - 1
	first := len(sel.points)
	sel.lookups = sel.lookups[:0]
	for i := range p.entries {
		e := &p.entries[i]
		x := e.exposureAt(at)
		if x == nil {
			continue
		}
		if l, ok := sel.labelsOf(e, scale, short.at(i)); ok {
			sel.points = append(sel.points, point{labels: l})
			sel.lookups = append(sel.lookups, series.Lookup{Exposure: x, Scale: scaleOf(x, scale)})
		}
	}
	w := p.target.window
	w.ReadLast(sel.lookups, sel.to*ms-int64(w.Keep(sel.s.cfg.MinAge)), at)
	kept := sel.points[:first]
	for i := range sel.lookups {
		if x := &sel.lookups[i]; x.Stamp != 0 {
			kept = append(kept, point{sel.points[first+i].labels, x.Stamp / ms, x.Value})
		}
	}
	sel.points = kept
}

// labelsOf returns the labels under which a series is selected. short are those that the
// query needs; nil: all. ok is false if the matchers do not select the series.
func (sel *selection) labelsOf(e *entry, scale float64, short *labels.Labels) (l labels.Labels, ok bool) {
	if scale != 0 && e.field() == 0 {
		return l, false
	}
	l = e.labels
	shown := sel.s.isShown(e, sel.now)
	if !shown {
		l = contradicted(l)
	}
	both := shown && sel.exported && e.claim != nil
	if !sel.matches(l, both) {
		return l, false
	}
	if short != nil && shown {
		return *short, true
	}
	if both {
		l = exported(l)
	}
	if scale != 0 {
		l = labels.NewBuilder(l).Set(model.MetricNameLabel, sel.name).Labels()
	}
	return l, true
}

// matches reports whether the matchers select a series. both says that the labels of its
// owner have both names.
func (sel *selection) matches(l labels.Labels, both bool) bool {
	for _, m := range sel.matchers {
		name := m.Name
		if owner, ok := page.ExportedOwner(name); ok && both {
			name = owner
		}
		if !m.Matches(l.Get(name)) {
			return false
		}
	}
	return true
}

func (e *entry) overlaps(from, to int64) bool {
	for x := range e.exposures {
		if x.From < to && x.Until > from {
			return true
		}
	}
	return false
}

// exposureAt returns the exposure of a series that its page shows at a time; nil: it
// does not.
func (e *entry) exposureAt(at int64) *series.Exposure {
	if x := &e.last; x.From <= at && at < x.Until {
		return x
	}
	for i := len(e.former) - 1; i >= 0; i-- {
		if x := &e.former[i]; x.From <= at && at < x.Until {
			return x
		}
	}
	return nil
}

// addUp adds the series up of the targets.
func (sel *selection) addUp(ctx context.Context) error {
	targets, ok := sel.s.index.candidates(sel.matchers, false)
	if !ok {
		for _, t := range sel.s.index.targets {
			targets = append(targets, t)
		}
	}
	for i, t := range targets {
		if i%512 == 511 && ctx.Err() != nil {
			return ctx.Err()
		}
		if sel.matches(t.up, false) {
			sel.addVirtual(result{sel: sel, labels: t.up, target: t})
		}
	}
	return nil
}

// addVirtual adds a series that is not in the windows.
func (sel *selection) addVirtual(r result) {
	if !sel.onlyNewest() {
		sel.found = append(sel.found, r)
		return
	}
	if samples := r.samples(nil); len(samples) > 0 {
		if last := samples[len(samples)-1]; !isStale(last.V) {
			sel.points = append(sel.points, point{r.labels, last.T, last.V})
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"cmp"
	"slices"
	"sync"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// index finds the exposures of the windows' targets by name, and the targets by the
// values of a few labels.
type index struct {
	mu       sync.RWMutex
	targets  map[*series.Target]*target
	names    map[string]*metric
	fields   map[gpu.FieldID][]string        // the names that pages have for a field
	postings [numPosted]map[string][]*target // by value

	groupings groupings
	tally     tally
}

// metric is the series of one name.
type metric struct {
	name  string
	parts []*part
	at    map[*target]int // in parts
}

// part is a target's series of one name.
type part struct {
	target  *target
	entries []entry
	reduced reduced
}

// target is a target's part of the index.
type target struct {
	window *series.Target
	labels series.TargetLabels
	names  []string
	values [numPosted][]string
	owners []*claim
	up     labels.Labels
}

// entry is one series: the exposures with the same labels.
type entry struct {
	labels labels.Labels
	claim  *claim            // the pod that an exporter's labels name; nil: none
	last   series.Exposure   // the newest
	former []series.Exposure // those before, by time
}

// field returns the field whose values a series has; 0: none.
func (e *entry) field() gpu.FieldID { return e.last.Field }

// since returns the time from which the series is known, in ns since 1970.
func (e *entry) since() int64 {
	if len(e.former) > 0 {
		return e.former[0].From
	}
	return e.last.From
}

// exposures iterates over the times in which the page showed the series, in their order.
func (e *entry) exposures(yield func(*series.Exposure) bool) {
	for i := range e.former {
		if !yield(&e.former[i]) {
			return
		}
	}
	yield(&e.last)
}

// The labels by whose values targets are found.
const (
	postedNode = iota
	postedNamespace
	postedPod
	numPosted
)

var posted = [numPosted]string{postedNode: "node", postedNamespace: "namespace", postedPod: "pod"}

func (x *index) init() {
	x.targets, x.names = map[*series.Target]*target{}, map[string]*metric{}
	x.fields = map[gpu.FieldID][]string{}
	x.tally = tally{open: map[*claim]struct{}{}, targets: map[*target]int{}}
	for i := range x.postings {
		x.postings[i] = map[string][]*target{}
	}
}

// refresh brings the index up to date.
func (s *Store) refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	epoch := s.deps.Windows.ExposureEpoch()
	if epoch == s.epoch {
		return
	}
	s.epoch = epoch
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	s.deps.Windows.TakeChanged(s.index.update)
}

// update indexes a target again. The caller holds x.mu.
func (x *index) update(w *series.Target) {
	if old := x.targets[w]; old != nil {
		x.remove(old)
	}
	l, ok := w.Labels()
	if !ok {
		return
	}
	t := &target{window: w, labels: l}
	t.up = upLabels(&l)
	x.targets[w] = t
	x.addSeries(t)
	if l.Node != "" {
		t.values[postedNode] = append(t.values[postedNode], l.Node)
	}
	if l.Pod != "" {
		t.values[postedNamespace], t.values[postedPod] = append(t.values[postedNamespace], l.Namespace), append(t.values[postedPod], l.Pod)
	}
	for i := range t.values {
		slices.Sort(t.values[i])
		t.values[i] = slices.Compact(t.values[i])
		for _, v := range t.values[i] {
			x.postings[i][v] = append(x.postings[i][v], t)
		}
	}
}

func (x *index) remove(t *target) {
	delete(x.targets, t.window)
	x.tally.forget(t)
	for _, name := range t.names {
		m := x.names[name]
		x.groupings.forgetAll(m.of(t))
		if m.remove(t) {
			delete(x.names, name)
		}
	}
	for i := range t.values {
		for _, v := range t.values[i] {
			left := slices.DeleteFunc(x.postings[i][v], func(o *target) bool { return o == t })
			if x.postings[i][v] = left; len(left) == 0 {
				delete(x.postings[i], v)
			}
		}
	}
}

// remove removes a target's series, and reports whether none are left.
func (m *metric) remove(t *target) (empty bool) {
	i, last := m.at[t], len(m.parts)-1
	m.parts[i] = m.parts[last]
	m.at[m.parts[i].target] = i
	m.parts[last] = nil
	m.parts = m.parts[:last]
	delete(m.at, t)
	return last == 0
}

// of returns a target's series; nil: it has none.
func (m *metric) of(t *target) *part {
	if i, ok := m.at[t]; ok {
		return m.parts[i]
	}
	return nil
}

// addSeries indexes the exposures of a target.
func (x *index) addSeries(t *target) {
	list := t.window.Exposures(nil)
	slices.SortStableFunc(list, func(a, b series.Exposure) int { return cmp.Compare(a.From, b.From) })
	known := map[labels.Labels]*entry{}
	names := map[string][]*entry{}
	claims := map[claimKey]*claim{}
	for _, e := range list {
		l, ok := e.Labels.(labels.Labels)
		if !ok {
			continue
		}
		if same := known[l]; same != nil {
			same.former = append(same.former, same.last)
			same.last = e
			continue
		}
		n := &entry{labels: l, last: e}
		known[l] = n
		if t.labels.Pod == "" && t.window.Name() != OwnTarget {
			n.claim = claimOf(l, claims, t)
		}
		name := l.Get(model.MetricNameLabel)
		names[name] = append(names[name], n)
	}
	for name, entries := range names {
		x.addPart(t, name, entries)
	}
	for _, n := range known {
		if n.claim != nil && n.last.Until == series.Open {
			n.claim.count(n.since())
		}
	}
	x.tally.add(t.owners)
}

func (x *index) addPart(t *target, name string, entries []*entry) {
	p := &part{target: t, entries: make([]entry, len(entries))}
	for i, e := range entries {
		p.entries[i] = *e
		if f := e.field(); f != 0 && !slices.Contains(x.fields[f], name) {
			x.fields[f] = append(x.fields[f], name)
		}
		for i := postedNamespace; i < numPosted; i++ {
			if v := e.labels.Get(posted[i]); v != "" {
				t.values[i] = append(t.values[i], v)
			}
		}
	}
	m := x.names[name]
	if m == nil {
		m = &metric{name: name, at: map[*target]int{}}
		x.names[name] = m
	}
	m.at[t] = len(m.parts)
	m.parts = append(m.parts, p)
	t.names = append(t.names, name)
}

// upLabels returns the labels of a target's series up.
func upLabels(l *series.TargetLabels) labels.Labels {
	return labels.FromStrings(model.MetricNameLabel, upName, "instance", l.Instance, "job", l.Job, "namespace", l.Namespace, "node", l.Node, "pod", l.Pod).WithoutEmpty()
}

const upName = "up"

// candidates returns the targets that can have series that the matchers select. ok is
// false if all targets can. ofExporters says that no pod's page has the series, whose
// labels exported_pod and so on are therefore those of the owner.
func (x *index) candidates(matchers []*labels.Matcher, ofExporters bool) (found []*target, ok bool) {
	for _, m := range matchers {
		name := m.Name
		if owner, ok := page.ExportedOwner(name); ok && ofExporters {
			name = owner
		}
		at := slices.Index(posted[:], name)
		if at < 0 {
			continue
		}
		values, limited := valuesOf(m)
		if !limited {
			continue
		}
		list := x.withValues(at, values)
		if !ok || len(list) < len(found) {
			found, ok = list, true
		}
	}
	return found, ok
}

// withValues returns the targets that have one of the values.
func (x *index) withValues(at int, values []string) (list []*target) {
	if len(values) == 1 {
		return x.postings[at][values[0]]
	}
	have := map[*target]struct{}{}
	for _, v := range values {
		for _, t := range x.postings[at][v] {
			if _, twice := have[t]; !twice {
				have[t] = struct{}{}
				list = append(list, t)
			}
		}
	}
	return list
}

// valuesOf returns the values that a matcher selects, if they are few and none is
// empty.
func valuesOf(m *labels.Matcher) (values []string, ok bool) {
	switch m.Type {
	case labels.MatchEqual:
		values = []string{m.Value}
	case labels.MatchRegexp:
		values = m.SetMatches()
	default:
		return nil, false
	}
	return values, len(values) > 0 && !slices.Contains(values, "")
}

// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Metric identifies a metric. The resource of an external metric is empty.
type Metric struct {
	Resource schema.GroupResource
	Name     string
}

// entry is the origin of a metric.
type entry struct {
	rule       *Rule
	series     string
	namespaced bool // its objects have a namespace
	batches    bool // one query serves all objects of a namespace
}

// index has the metrics that the rules make of the series that exist. It is immutable.
type index struct {
	entries  map[Metric]entry
	external map[string]entry
	warnings []string
	skipped  int // beyond maxMetrics

	sorting sync.Once
	sorted  []Listed // of entries
}

// listed returns the metrics of objects, sorted. It sorts once.
func (x *index) listed() []Listed {
	x.sorting.Do(func() {
		x.sorted = make([]Listed, 0, len(x.entries))
		for m, e := range x.entries {
			x.sorted = append(x.sorted, Listed{m, e.namespaced})
		}
		slices.SortFunc(x.sorted, func(a, b Listed) int { return cmp.Compare(a.String(), b.String()) })
	})
	return x.sorted
}

// The bounds of discovery. Tenants can multiply series, names and labels.
const (
	maxMetrics = 10_000  // of a file, times their resources
	maxShapes  = 100_000 // of one rule
)

// shape is what discovery reads of series: the name, and the names of the labels.
type shape struct {
	name   string
	labels labels.Labels // with the value x
}

// shapes are the different shapes of many series.
type shapes struct {
	seen map[uint64]bool
	list []shape
}

// add adds the shape of a series. It reports whether there is room for more.
func (s *shapes) add(ls labels.Labels) bool {
	if s.seen == nil {
		s.seen = map[uint64]bool{}
	}
	h, name := fnv.New64a(), ""
	ls.Range(func(l labels.Label) {
		switch {
		case l.Name == model.MetricNameLabel:
			name = l.Value
			_, _ = h.Write([]byte(l.Value)) // a hash's Write never fails
		case l.Value != "":
			_, _ = h.Write([]byte(l.Name))
		}
		_, _ = h.Write([]byte{0xff})
	})
	if name == "" || s.seen[h.Sum64()] {
		return true
	}
	s.seen[h.Sum64()] = true
	b := labels.NewScratchBuilder(ls.Len())
	ls.Range(func(l labels.Label) {
		if l.Name != model.MetricNameLabel && l.Value != "" {
			b.Add(strings.Clone(l.Name), "x")
		}
	})
	s.list = append(s.list, shape{strings.Clone(name), b.Labels()})
	return len(s.list) < maxShapes
}

// SeriesFunc calls yield with the labels of each series that the matchers select and that
// had a sample lately, until it returns false. The labels are valid during the call.
type SeriesFunc func(ctx context.Context, matchers []*labels.Matcher, yield func(labels.Labels) bool) error

// discover reads the series of all rules. Rules with one selector share a request. The
// result has the metrics of the rules that could be read.
func discover(ctx context.Context, set *RuleSet, read SeriesFunc) (*index, error) {
	x := &index{entries: map[Metric]entry{}, external: map[string]entry{}}
	bySelector := map[string]*shapes{}
	var failed error
	for _, r := range set.Rules {
		s, ok := bySelector[r.Source.SeriesQuery]
		if !ok {
			s = &shapes{}
			if err := read(ctx, r.Select, s.add); err != nil {
				failed = cmp.Or(failed, fmt.Errorf("%s: seriesQuery: %w", r.Path, err))
			}
			slices.SortFunc(s.list, func(a, b shape) int { return strings.Compare(a.name, b.name) })
			bySelector[r.Source.SeriesQuery] = s
		}
		for i := range s.list {
			x.add(r, &s.list[i])
		}
	}
	return x, failed
}

// add adds the metrics that a rule makes of series.
func (x *index) add(r *Rule, s *shape) {
	name, ok := r.Name(s.name)
	if !ok {
		return
	}
	if r.External {
		put(x, x.external, name, entry{rule: r, series: s.name})
		return
	}
	for _, kind := range r.Kinds(s.labels) {
		e := entry{rule: r, series: s.name, namespaced: kind.Namespaced}
		if label, err := r.mapping.label(kind.GroupResource); err == nil {
			e.batches = r.Batches(s.name, label)
		}
		put(x, x.entries, Metric{kind.GroupResource, name}, e)
	}
}

// put adds a metric. Of several rules the last one has it, as in prometheus-adapter, and
// of several series of one rule the first one by name.
func put[K comparable](x *index, m map[K]entry, key K, e entry) {
	old, taken := m[key]
	switch {
	case taken && old.rule == e.rule:
		if old.series != e.series {
			x.warn("%s: the series %s and %s both become %v: only the first is served; use name.as, or a narrower seriesQuery", e.rule.Path, old.series, e.series, key)
		}
		return
	case taken:
		x.warn("%s and %s both claim %v: the last one serves it, as in prometheus-adapter; remove one of them", old.rule.Path, e.rule.Path, key)
	case len(x.entries)+len(x.external) >= maxMetrics:
		x.skipped++
		return
	}
	m[key] = e
}

// maxWarnings bounds the warnings that are kept.
const maxWarnings = 50

func (x *index) warn(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); len(x.warnings) < maxWarnings && !slices.Contains(x.warnings, text) {
		x.warnings = append(x.warnings, text)
	}
}

// String returns the metric as in discovery, such as pods/gpu_util.
func (m Metric) String() string { return m.Resource.String() + "/" + m.Name }

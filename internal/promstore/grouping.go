// SPDX-License-Identifier: Apache-2.0

package promstore

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
)

// An aggregation such as avg by(namespace) (m) needs only the label namespace of the
// series of m. The engine tells the storage so, and most of its work on many series is
// that with their labels. The storage therefore keeps the few labels that the groupings in
// use need.

// maxGroupings is the limit of groupings whose labels are kept. Queries with other ones
// get all labels.
const maxGroupings = 8

// groupings are the groupings in use.
type groupings struct {
	mu   sync.Mutex
	used [maxGroupings]*grouping // nil: free
}

// grouping is a list of labels that queries group by.
type grouping struct {
	slot  int
	names []string // sorted
	last  time.Time
}

// reduced are the labels of a part's entries, by the grouping's slot.
type reduced [maxGroupings]atomic.Pointer[shortLabels]

// shortLabels are the labels of a part's entries for one grouping.
type shortLabels struct {
	of   *grouping
	list []labels.Labels
}

// at returns the labels of an entry; nil: all are needed.
func (s *shortLabels) at(i int) *labels.Labels {
	if s == nil {
		return nil
	}
	return &s.list[i]
}

// of returns the grouping of a query that needs no other labels; nil: it needs all, or
// too many groupings are in use.
func (g *groupings) of(hints *storage.SelectHints, now time.Time) *grouping {
	if !hints.By || !isReducing(hints.Func) || slices.Contains(hints.Grouping, model.MetricNameLabel) {
		return nil
	}
	names := slices.Clone(hints.Grouping)
	slices.Sort(names)
	names = slices.Compact(names)
	g.mu.Lock()
	defer g.mu.Unlock()
	free := -1
	for i, x := range g.used {
		switch {
		case x == nil || now.Sub(x.last) > useTTL:
			free = i
		case slices.Equal(x.names, names):
			x.last = now
			return x
		}
	}
	if free < 0 {
		return nil
	}
	g.used[free] = &grouping{slot: free, names: names, last: now}
	return g.used[free]
}

// isReducing reports whether an aggregation's result has only the labels that it groups
// by. Others, such as topk, show the labels of its series.
func isReducing(op string) bool {
	switch op {
	case "avg", "sum", "min", "max", "count", "group", "stddev", "stdvar", "quantile":
		return true
	}
	return false
}

// labelsFor returns the labels of the part's entries for a grouping; nil without one.
func (p *part) labelsFor(g *grouping) *shortLabels {
	if g == nil {
		return nil
	}
	slot := &p.reduced[g.slot]
	if known := slot.Load(); known != nil && known.of == g {
		return known
	}
	short := &shortLabels{of: g, list: make([]labels.Labels, len(p.entries))}
	b := labels.NewScratchBuilder(len(g.names))
	for i := range p.entries {
		b.Reset()
		for _, name := range g.names {
			if v := p.entries[i].labels.Get(name); v != "" {
				b.Add(name, v)
			}
		}
		short.list[i] = b.Labels()
	}
	slot.Store(short)
	return short
}

// expireGroupings frees the groupings that no query used for a while, and their labels.
func (s *Store) expireGroupings(now time.Time) {
	var unused []int
	s.groupings.mu.Lock()
	for i, x := range s.groupings.used {
		if x != nil && now.Sub(x.last) > useTTL {
			s.groupings.used[i] = nil
			unused = append(unused, i)
		}
	}
	s.groupings.mu.Unlock()
	if len(unused) == 0 {
		return
	}
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	for _, m := range s.index.names {
		for _, p := range m.parts {
			for _, slot := range unused {
				p.reduced[slot].Store(nil)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// An aggregation such as avg by(namespace) (m) needs only the label namespace of the
// series of m. The engine tells the storage so, and most of its work on many series is
// that with their labels. The storage therefore keeps the few labels that the groupings in
// use need.

// The limits of groupings, and of the memory of their labels. Queries with other ones
// get all labels: they are slower, and have the same result.
const (
	maxGroupings     = 8
	maxGroupingBytes = 32 << 20
)

// groupings are the groupings in use.
type groupings struct {
	bytes atomic.Int64 // of the labels that parts keep
	mu    sync.Mutex
	used  [maxGroupings]*grouping // nil: free
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
	of    *grouping
	list  []labels.Labels
	bytes int64
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

// labelsFor returns the labels of the part's entries for a grouping; nil without one, and
// if there is no memory to keep them.
func (g *groupings) labelsFor(p *part, of *grouping) *shortLabels {
	if of == nil {
		return nil
	}
	slot := &p.reduced[of.slot]
	known := slot.Load()
	if known != nil && known.of == of {
		return known
	}
	if g.bytes.Load() >= maxGroupingBytes {
		return nil
	}
	short := &shortLabels{of: of, list: make([]labels.Labels, len(p.entries)), bytes: shortBytes}
	b := labels.NewScratchBuilder(len(of.names))
	for i := range p.entries {
		b.Reset()
		for _, name := range of.names {
			of := name
			if owner, ok := page.ExportedOwner(name); ok && p.entries[i].claim != nil {
				of = owner // who groups by it asks for it
			}
			if v := p.entries[i].labels.Get(of); v != "" {
				b.Add(name, v)
			}
		}
		short.list[i] = b.Labels()
		short.bytes += labelsBytes + series.TextBytes(int(short.list[i].ByteSize()))
	}
	if slot.CompareAndSwap(known, short) {
		g.bytes.Add(short.bytes)
		if known != nil {
			g.bytes.Add(-known.bytes)
		}
	}
	return short
}

const (
	shortBytes  = int64(unsafe.Sizeof(shortLabels{}))
	labelsBytes = int64(unsafe.Sizeof(labels.Labels{}))
)

// forget frees the labels that a part keeps in a slot.
func (g *groupings) forget(p *part, slot int) {
	if known := p.reduced[slot].Swap(nil); known != nil {
		g.bytes.Add(-known.bytes)
	}
}

// forgetAll frees the labels that a part keeps.
func (g *groupings) forgetAll(p *part) {
	for slot := range p.reduced {
		g.forget(p, slot)
	}
}

// expireGroupings frees the groupings that no query used for a while, and their labels.
func (s *Store) expireGroupings(now time.Time) {
	var unused []int
	s.index.groupings.mu.Lock()
	for i, x := range s.index.groupings.used {
		if x != nil && now.Sub(x.last) > useTTL {
			s.index.groupings.used[i] = nil
			unused = append(unused, i)
		}
	}
	s.index.groupings.mu.Unlock()
	if len(unused) == 0 {
		return
	}
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	for _, m := range s.index.names {
		for _, p := range m.parts {
			for _, slot := range unused {
				s.index.groupings.forget(p, slot)
			}
		}
	}
}

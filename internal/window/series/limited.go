// SPDX-License-Identifier: Apache-2.0

package series

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Refused is the kind of a thing that was refused to a target.
type Refused uint8

// The kinds of refused things. The reason is MaxSeries, MaxDevices, MaxOwners, the
// length of a name or the memory limit.
const (
	RefusedTarget   Refused = iota // a new target
	RefusedSeries                  // a new series, or an evicted one
	RefusedDevice                  // a device
	RefusedOwner                   // an owner of a device
	RefusedName                    // a name that is too long
	RefusedHistory                 // samples or lines that were dropped before the end of the window
	RefusedWriter                  // memory of the target's scraper for its page
	RefusedReserved                // a metric name that the target may not have
	NumRefused
)

// String returns the kind as a label's value.
func (r Refused) String() string {
	return [...]string{"target", "series", "device", "owner", "name", "history", "page", "reserved"}[r]
}

// limitedFor is the time for which a target counts as limited after a refusal.
const limitedFor = time.Minute

// Limited is a target with a recent refusal, or with a window that the memory limit
// shortens.
type Limited struct {
	Target  string
	Labels  TargetLabels
	Bytes   int64         // the memory of the target
	Share   int64         // its limit in bytes; 0: the limits of one target apply, not the memory limit
	Short   bool          // its window is shorter than Span
	Window  time.Duration // from its oldest sample to its newest
	Refused uint64        // refusals since the target was added
}

// String returns the target's memory and refusals as a sentence.
func (x *Limited) String() string {
	s := fmt.Sprintf("takes %.1f MiB", float64(x.Bytes)/(1<<20))
	if x.Share > 0 {
		s += fmt.Sprintf(", its share of the memory limit is %.1f MiB", float64(x.Share)/(1<<20))
	}
	if x.Short {
		s += fmt.Sprintf("; its window is %v long", x.Window.Round(time.Second))
	}
	if x.Refused > 0 {
		s += fmt.Sprintf("; %d series, devices, owners or names were refused", x.Refused)
	}
	return s
}

// targetSet is a set of targets. No other lock is taken while its lock is held.
type targetSet struct {
	mu      sync.Mutex
	targets map[*Target]struct{}
	added   atomic.Uint64 // calls of add
}

func (l *targetSet) add(t *Target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.targets[t] = struct{}{}
	l.added.Add(1)
}

func (l *targetSet) remove(t *Target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.targets, t)
}

func (l *targetSet) all() []*Target {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.targets))
}

// take empties the set and returns what it had.
func (l *targetSet) take() map[*Target]struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.targets
	l.targets = map[*Target]struct{}{}
	return taken
}

// limits are what was refused to a target, and until when it counts as limited.
type limits struct {
	refused atomic.Uint64 // refusals since the start
	short   bool          // the memory limit makes the window shorter than Span
	listed  bool          // in the store's list of limited targets
	last    int64         // the newest timestamp at the last refusal; 0: before the clock was set back
}

// Refuse counts n things that the target's writer omitted from its page.
func (t *Target) Refuse(r Refused, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed == nil {
		t.refuse(r, n)
	}
}

// refuse counts n refusals. The caller holds t.mu.
func (t *Target) refuse(r Refused, n int) {
	t.store.refused[r].Add(uint64(n))
	t.limits.refused.Add(uint64(n))
	t.limit()
}

// limit marks the target as limited. The caller holds t.mu.
func (t *Target) limit() {
	l := &t.limits
	l.last = 1
	if newest, ok := t.columns.ring.Newest(); ok {
		l.last = newest
	}
	if !l.listed {
		l.listed = true
		t.store.limited.add(t)
	}
}

// unlimit removes the mark if there was no refusal within limitedFor and the window
// is not short. The caller holds t.mu.
func (t *Target) unlimit(stamp int64) {
	if l := &t.limits; l.listed && !l.short && stamp-l.last > int64(limitedFor) {
		l.listed = false
		t.store.limited.remove(t)
	}
}

// Limited lists the limited targets, the largest first.
func (s *Store) Limited() []Limited {
	var out []Limited
	for _, t := range s.limited.all() {
		out = append(out, t.asLimited())
	}
	slices.SortFunc(out, func(a, b Limited) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Refused, a.Refused), cmp.Compare(a.Target, b.Target))
	})
	return out
}

func (t *Target) asLimited() Limited {
	t.mu.RLock()
	defer t.mu.RUnlock()
	x := Limited{Target: t.name, Labels: *t.facts.labels.Load(), Bytes: t.account.bytes.Load(), Short: t.limits.short, Refused: t.limits.refused.Load()}
	oldest, _ := t.columns.ring.Oldest()
	newest, _ := t.columns.ring.Newest()
	x.Window = time.Duration(newest - oldest)
	if share, ok := t.store.memory.TargetShare(); ok {
		x.Share = share
	}
	return x
}

// SPDX-License-Identifier: Apache-2.0

package series

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
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
	RefusedHistory                 // samples or owners that were dropped before the end of the window
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

// limitedList is the set of limited targets. No other lock is taken while its lock is
// held.
type limitedList struct {
	mu      sync.Mutex
	targets map[*Target]struct{}
}

func (l *limitedList) add(t *Target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.targets[t] = struct{}{}
}

func (l *limitedList) remove(t *Target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.targets, t)
}

func (l *limitedList) all() []*Target {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]*Target, 0, len(l.targets))
	for t := range l.targets {
		out = append(out, t)
	}
	return out
}

// Refuse counts n things that the target's writer omitted from its page.
func (t *Target) Refuse(r Refused, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.refuse(r, n)
	}
}

// refuse counts n refusals. The caller holds t.mu.
func (t *Target) refuse(r Refused, n int) {
	t.store.refused[r].Add(uint64(n))
	t.refused.Add(uint64(n))
	t.limit()
}

// limit marks the target as limited. The caller holds t.mu.
func (t *Target) limit() {
	t.limited = 1
	if newest, ok := t.ring.Newest(); ok {
		t.limited = newest
	}
	if !t.listed {
		t.listed = true
		t.store.limited.add(t)
	}
}

// unlimit removes the mark if there was no refusal within limitedFor and the window
// is not short. The caller holds t.mu.
func (t *Target) unlimit(stamp int64) {
	if !t.listed || t.short || stamp-t.limited <= int64(limitedFor) {
		return
	}
	t.listed = false
	t.store.limited.remove(t)
}

// Limited lists the limited targets, the largest first.
func (s *Store) Limited() []Limited {
	var out []Limited
	for _, t := range s.limited.all() {
		out = append(out, t.asLimited())
	}
	s.mu.RLock()
	for i := range out {
		if t := s.targets[out[i].Target]; t != nil {
			out[i].Labels = t.labels
		}
	}
	s.mu.RUnlock()
	slices.SortFunc(out, func(a, b Limited) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Refused, a.Refused), cmp.Compare(a.Target, b.Target))
	})
	return out
}

func (t *Target) asLimited() Limited {
	t.mu.RLock()
	defer t.mu.RUnlock()
	x := Limited{Target: t.name, Bytes: t.charged.Load(), Short: t.short, Refused: t.refused.Load()}
	oldest, _ := t.ring.Oldest()
	newest, _ := t.ring.Newest()
	x.Window = time.Duration(newest - oldest)
	if share, ok := t.store.memory.TargetShare(); ok {
		x.Share = share
	}
	return x
}

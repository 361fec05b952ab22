// SPDX-License-Identifier: Apache-2.0

package series

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/ledger"
	"github.com/gpupilot/gpupilot/internal/window/ring"
)

// Labels is the label set of a series as its page shows it. Equal sets are equal as
// interface values. The store only compares them: their encoding is that of the reader.
type Labels interface {
	// ByteSize returns the bytes of the set.
	ByteSize() uint64
}

// Exposed is a series of a target's page, with the labels that a query finds it by.
type Exposed struct {
	Labels Labels
	Ref    Ref         // of the values
	Field  gpu.FieldID // whose values these are; 0 if the series is the line's own
	Scale  float64     // the page's value times Scale is the stored one; never 0
}

// Exposure is an Exposed with the time in which the page showed it, [From, Until) in
// ns since 1970. Until is Open while the page shows it.
type Exposure struct {
	Exposed
	From, Until int64
}

// Open is the end of an exposure that has not ended, and of a tenure.
const Open = open

// exposures are the labelled series of a target. Those that the page no longer shows
// stay until the window has no samples of them.
type exposures struct {
	list   []Exposure
	closed int   // that have ended
	forget bool  // drop those that the next list ends
	bytes  int64 // of list and its labels
}

const (
	// exposureBytes is the size of an exposure, with its entry in the index of a
	// reader.
	exposureBytes = int64(unsafe.Sizeof(Exposure{})) + 200
	// maxClosed is the limit of ended exposures of a target, beside twice those that
	// have not ended. Beyond, the oldest half is dropped.
	maxClosed = 1024
	// maxLabelBytes is the limit of a label set. A line of dcgm-exporter with its
	// pod's labels has 1 to 4 KiB.
	maxLabelBytes = 8 << 10
)

// setBytes returns the memory of a label set.
func setBytes(l Labels) int64 { return TextBytes(int(l.ByteSize())) + 16 }

// changedTargets is the set of targets whose exposures have changed since the last
// call of take. No other lock is taken while its lock is held.
type changedTargets struct {
	mu      sync.Mutex
	targets map[*Target]struct{}
	epoch   atomic.Uint64 // changes since the start
}

func (c *changedTargets) add(t *Target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.targets[t] = struct{}{}
	c.epoch.Add(1)
}

// ExposureEpoch returns a number that changes with each change of a target's exposures.
func (s *Store) ExposureEpoch() uint64 { return s.changed.epoch.Load() }

// TakeChanged calls f for each target whose exposures have changed since the last call.
// It serves one reader, which keeps an index of them.
func (s *Store) TakeChanged(f func(*Target)) {
	s.changed.mu.Lock()
	targets := s.changed.targets
	s.changed.targets = map[*Target]struct{}{}
	s.changed.mu.Unlock()
	for t := range targets {
		f(t)
	}
}

// Labels returns the target's labels. ok is false after the target was dropped.
func (t *Target) Labels() (l TargetLabels, ok bool) {
	t.store.mu.RLock()
	defer t.store.mu.RUnlock()
	return t.labels, t.store.targets[t.name] == t
}

// Expose sets the labelled series of the page that was collected at. The list is
// complete: a series that is not in it has left the page. It returns false if a limit
// or the memory limit refused a part of the list.
func (t *Target) Expose(at time.Time, list []Exposed) (whole bool) {
	whole, blocked := t.expose(at.UnixNano(), list, false)
	if blocked {
		t.store.rebalance()
		whole, _ = t.expose(at.UnixNano(), list, true)
	}
	t.store.rebalanceIfDue()
	return whole
}

// ForgetEnded has the next Expose drop the series that it ends: nobody reads them any more.
func (t *Target) ForgetEnded() { t.exposed.forget = true }

// expose is Expose. If other targets must free memory first, it changes nothing and
// returns blocked; on the last attempt, it omits the new series instead.
func (t *Target) expose(stamp int64, list []Exposed, last bool) (whole, blocked bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(list) == 0 && len(t.exposed.list) == 0 {
		return true, false
	}
	defer t.settle()
	shown := make(map[Labels]int, len(t.exposed.list)-t.exposed.closed)
	for i := range t.exposed.list {
		if x := &t.exposed.list[i]; x.Until == Open {
			shown[x.Labels] = i
		}
	}
	added, whole := t.newExposures(list, shown)
	if v := t.reserve(t.exposed.costOf(added)); v == ledger.NoRoom && !last {
		return false, true
	} else if v != ledger.Granted {
		t.refuse(RefusedSeries, len(added))
		added, whole = nil, false
	}
	if t.applyExposures(stamp, list, shown, added) {
		t.store.changed.add(t)
	}
	return whole, false
}

// newExposures returns the series that the target has not shown so far.
func (t *Target) newExposures(list []Exposed, shown map[Labels]int) (added []Exposed, whole bool) {
	whole = true
	room := MaxSeries - len(shown)
	for i := range list {
		x := &list[i]
		if _, ok := shown[x.Labels]; ok {
			continue
		}
		switch {
		case x.Labels.ByteSize() > maxLabelBytes:
			t.refuse(RefusedName, 1)
			whole = false
		case len(added) >= room:
			t.refuse(RefusedSeries, 1)
			whole = false
		default:
			added = append(added, *x)
		}
	}
	return added, whole
}

// costOf returns the most that new exposures can cost.
func (e *exposures) costOf(added []Exposed) (c ledger.Cost) {
	for i := range added {
		c = c.Add(ledger.Plain(setBytes(added[i].Labels)))
	}
	if room := e.roomFor(len(added)); room > cap(e.list) {
		c = c.Add(ledger.Cost{Peak: int64(room) * exposureBytes, Net: int64(room-cap(e.list)) * exposureBytes})
	}
	return c
}

// roomFor returns the capacity of the list that has room for n more.
func (e *exposures) roomFor(n int) int { return max(len(e.list)+n, cap(e.list)) }

// applyExposures ends the exposures that are not in the list, and adds the new ones.
func (t *Target) applyExposures(stamp int64, list []Exposed, shown map[Labels]int, added []Exposed) (changed bool) {
	e := &t.exposed
	for i := range list {
		at, ok := shown[list[i].Labels]
		if !ok {
			continue
		}
		delete(shown, list[i].Labels)
		if x := &e.list[at]; x.Exposed != list[i] {
			x.Exposed, changed = list[i], true
		}
	}
	end, forgotten := stamp, e.forget
	if forgotten {
		end, e.forget = 0, false
	}
	for _, at := range shown { // what is left is not in the list
		e.list[at].Until = end
		e.closed++
		changed = true
	}
	t.pruneExposures()
	if forgotten {
		t.freeLines(added)
	}
	if room := e.roomFor(len(added)); room > cap(e.list) {
		e.list = append(make([]Exposure, 0, room), e.list...)
	}
	have := make(map[Labels]struct{}, len(added))
	for i := range added {
		if _, twice := have[added[i].Labels]; twice {
			continue // the page has the series twice: the first counts
		}
		have[added[i].Labels] = struct{}{}
		e.list = append(e.list, Exposure{added[i], stamp, Open})
		changed = true
	}
	t.countExposures()
	return changed
}

// freeLines frees the series of lines that no exposure has, present or added, and their
// part of the ring.
func (t *Target) freeLines(added []Exposed) {
	used := make(map[uint32]bool, len(t.exposed.list)+len(added))
	for i := range t.exposed.list {
		used[t.exposed.list[i].Ref.id] = true
	}
	for i := range added {
		used[added[i].Ref.id] = true
	}
	freed := 0
	for id := range t.series {
		if s := &t.series[id]; s.live && len(s.name) == lineKey && s.name[0] == 0 && !used[uint32(id)] {
			t.freeSeries(uint32(id))
			freed++
		}
	}
	if freed > 0 {
		t.forgetFreed(true)
		t.compact(t.ring.Slots(), freed > t.live/8)
	}
}

// pruneExposures drops the exposures that ended before the window.
func (t *Target) pruneExposures() {
	e := &t.exposed
	if e.closed == 0 {
		return
	}
	oldest, ok := t.ring.Oldest()
	if most := maxClosed + 2*(len(e.list)-e.closed); e.closed > most {
		ends := make([]int64, 0, e.closed)
		for i := range e.list {
			if e.list[i].Until != Open {
				ends = append(ends, e.list[i].Until)
			}
		}
		slices.Sort(ends)
		oldest, ok = max(oldest, ends[len(ends)/2]), true
		t.refuse(RefusedHistory, len(ends)/2)
	}
	if !ok {
		return
	}
	e.drop(func(x *Exposure) bool { return x.Until <= oldest })
}

// drop removes the exposures for which gone returns true.
func (e *exposures) drop(gone func(*Exposure) bool) (dropped bool) {
	kept := e.list[:0]
	e.closed = 0
	for i := range e.list {
		if gone(&e.list[i]) {
			dropped = true
			continue
		}
		if e.list[i].Until != Open {
			e.closed++
		}
		kept = append(kept, e.list[i])
	}
	clear(e.list[len(kept):])
	if e.list = kept; cap(kept) > 2*len(kept)+8 {
		e.list = slices.Clip(slices.Clone(kept))
	}
	return dropped
}

// countExposures computes their memory.
func (t *Target) countExposures() {
	e := &t.exposed
	e.bytes = int64(cap(e.list)) * exposureBytes
	for i := range e.list {
		e.bytes += setBytes(e.list[i].Labels)
	}
}

// dropDeadExposures drops the exposures whose series were freed. The caller holds
// t.mu.
func (t *Target) dropDeadExposures() {
	if t.exposed.drop(func(x *Exposure) bool { return !t.isLive(x.Ref) }) {
		t.countExposures()
		t.store.changed.add(t)
	}
}

func (t *Target) isLive(r Ref) bool {
	return int(r.id) < len(t.series) && t.series[r.id].live && t.series[r.id].gen == r.gen
}

// Exposures appends the target's exposures.
func (t *Target) Exposures(dst []Exposure) []Exposure {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return append(dst, t.exposed.list...)
}

// Keep returns how long a value counts while the page still shows its series: three
// intervals, at least least.
func (t *Target) Keep(least time.Duration) time.Duration {
	return max(time.Duration(t.keep.Load()), least)
}

// Lookup asks for the newest value of an exposure in a time, divided by Scale. ReadLast
// fills in Stamp and Value; Stamp is 0 if there is no value.
type Lookup struct {
	Exposure *Exposure
	Scale    float64
	Stamp    int64 // ns since 1970
	Value    float64
}

// ReadLast reads the newest values within [from, to], in ns since 1970.
func (t *Target) ReadLast(lookups []Lookup, from, to int64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	end := t.ring.Len()
	if newest, ok := t.ring.Newest(); ok && newest > to {
		end = t.ring.Search(to + 1)
	}
	for i := range lookups {
		x := &lookups[i]
		x.Stamp = 0
		if !t.isLive(x.Exposure.Ref) {
			continue
		}
		t.readLast(x, max(from, x.Exposure.From), end)
	}
}

// readLast reads the newest value before the index end that is not older than from.
func (t *Target) readLast(x *Lookup, from int64, end int) {
	s := &t.series[x.Exposure.Ref.id]
	for i := end - 1; i >= 0; i-- {
		slot := t.ring.Slot(i)
		stamp := t.ring.Stamp(slot)
		if stamp < from {
			return
		}
		if stamp >= x.Exposure.Until {
			continue
		}
		if v, ok := t.ring.At(s.column, slot); ok {
			x.Stamp, x.Value = stamp, v/x.Scale
			return
		}
	}
}

// ReadRange appends the values of an exposure within [from, to], in ns since 1970,
// oldest first.
func (t *Target) ReadRange(dst []ring.Stamped, x *Exposure, from, to int64) []ring.Stamped {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.isLive(x.Ref) {
		return dst
	}
	s := &t.series[x.Ref.id]
	for i := t.ring.Search(max(from, x.From)); i < t.ring.Len(); i++ {
		slot := t.ring.Slot(i)
		stamp := t.ring.Stamp(slot)
		if stamp > to || stamp >= x.Until {
			break
		}
		if v, ok := t.ring.At(s.column, slot); ok {
			dst = append(dst, ring.Stamped{Stamp: stamp, Value: v / x.Scale})
		}
	}
	return dst
}

// rewindExposures drops the ended exposures of a target whose clock was set back to
// stamp. The others begin no later than the new time.
func (t *Target) rewindExposures(stamp int64) {
	t.exposed.drop(func(x *Exposure) bool { return x.Until != Open })
	for i := range t.exposed.list {
		t.exposed.list[i].From = min(t.exposed.list[i].From, stamp)
	}
	t.countExposures()
	t.failures.Clear()
	t.settle()
	t.store.changed.add(t)
}

// Claimed returns how many devices the target assigns to a pod now.
func (t *Target) Claimed(namespace, pod string) (n int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	h := t.pods[podKey{namespace, pod}]
	for i := 0; h != nil && i < len(h.spans); i++ {
		if h.spans[i].until == open {
			n++
		}
	}
	return n
}

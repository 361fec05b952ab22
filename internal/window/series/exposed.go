// SPDX-License-Identifier: Apache-2.0

package series

import (
	"math"
	"slices"
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

// Open is the end of an exposure that has not ended.
const Open = math.MaxInt64

// exposures are the labelled series of a target. Those that the page no longer shows
// stay until the window has no samples of them.
type exposures struct {
	list   []Exposure
	closed int   // that have ended
	forget bool  // drop those that the next list ends
	bytes  int64 // of the labels
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

// size returns the bytes of the exposures.
func (e *exposures) size() int64 { return e.bytes + int64(cap(e.list))*exposureBytes }

// costOf returns the most that new exposures can cost.
func (e *exposures) costOf(added []Exposed) (c ledger.Cost) {
	for i := range added {
		c = c.Add(ledger.Plain(setBytes(added[i].Labels)))
	}
	if room := len(e.list) + len(added); room > cap(e.list) {
		c = c.Add(ledger.Cost{Peak: int64(room) * exposureBytes, Net: int64(room-cap(e.list)) * exposureBytes})
	}
	return c
}

// shown returns where the list has the exposures that have not ended.
func (e *exposures) shown() map[Labels]int {
	shown := make(map[Labels]int, len(e.list)-e.closed)
	for i := range e.list {
		if x := &e.list[i]; x.Until == Open {
			shown[x.Labels] = i
		}
	}
	return shown
}

// update ends the shown exposures that are not in the list, and updates the others.
func (e *exposures) update(stamp int64, list []Exposed, shown map[Labels]int) (changed bool) {
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
	if e.forget {
		stamp = 0
	}
	for _, at := range shown { // what is left is not in the list
		e.list[at].Until = stamp
		e.closed++
		changed = true
	}
	return changed
}

// prune drops the exposures that ended before oldest, the start of the window; ok is false
// if it has none. If too many have ended, it drops more, and returns how many at least.
func (e *exposures) prune(oldest int64, ok bool) (early int) {
	if e.closed == 0 {
		return 0
	}
	if most := maxClosed + 2*(len(e.list)-e.closed); e.closed > most {
		ends := make([]int64, 0, e.closed)
		for i := range e.list {
			if e.list[i].Until != Open {
				ends = append(ends, e.list[i].Until)
			}
		}
		slices.Sort(ends)
		early = len(ends) / 2
		oldest, ok = max(oldest, ends[early]), true
	}
	if ok {
		e.drop(func(x *Exposure) bool { return x.Until <= oldest })
	}
	return early
}

// add adds exposures that begin at stamp.
func (e *exposures) add(stamp int64, added []Exposed) {
	if room := len(e.list) + len(added); room > cap(e.list) {
		e.list = append(make([]Exposure, 0, room), e.list...)
	}
	have := make(map[Labels]struct{}, len(added))
	for i := range added {
		if _, twice := have[added[i].Labels]; twice {
			continue // the page has the series twice: the first counts
		}
		have[added[i].Labels] = struct{}{}
		e.list = append(e.list, Exposure{added[i], stamp, Open})
		e.bytes += setBytes(added[i].Labels)
	}
}

// drop removes the exposures for which gone returns true.
func (e *exposures) drop(gone func(*Exposure) bool) (dropped bool) {
	kept := e.list[:0]
	for i := range e.list {
		x := &e.list[i]
		if !gone(x) {
			kept = append(kept, *x)
			continue
		}
		dropped = true
		e.bytes -= setBytes(x.Labels)
		if x.Until != Open {
			e.closed--
		}
	}
	clear(e.list[len(kept):])
	if e.list = kept; cap(kept) > 2*len(kept)+8 {
		e.list = slices.Clip(slices.Clone(kept))
	}
	return dropped
}

// rewind drops the ended exposures. The others begin no later than stamp, to which the
// clock was set back.
func (e *exposures) rewind(stamp int64) {
	e.drop(func(x *Exposure) bool { return x.Until != Open })
	for i := range e.list {
		e.list[i].From = min(e.list[i].From, stamp)
	}
}

// ExposureEpoch returns a number that changes with each change of a target's exposures.
func (s *Store) ExposureEpoch() uint64 { return s.changed.added.Load() }

// TakeChanged calls f for each target whose exposures have changed since the last call.
// It serves one reader, which keeps an index of them.
func (s *Store) TakeChanged(f func(*Target)) {
	for t := range s.changed.take() {
		f(t)
	}
}

// Labels returns the target's labels. ok is false after the target was dropped.
func (t *Target) Labels() (l TargetLabels, ok bool) {
	t.store.mu.RLock()
	defer t.store.mu.RUnlock()
	return *t.facts.labels.Load(), t.store.targets[t.name] == t
}

// Expose sets the labelled series of the page that was collected at. The list is
// complete: a series that is not in it has left the page. It returns false if a limit
// or the memory limit refused a part of the list.
func (t *Target) Expose(at time.Time, list []Exposed) (whole bool) {
	t.store.attempt(func(last bool) (blocked bool) {
		whole, blocked = t.expose(at.UnixNano(), list, last)
		return blocked
	})
	return whole
}

// ForgetEnded has the next Expose drop the series that it ends: nobody reads them any more.
func (t *Target) ForgetEnded() { t.exposed.forget = true }

// expose is Expose. If other targets must free memory first, it changes nothing and
// returns blocked; on the last attempt, it omits the new series instead.
func (t *Target) expose(stamp int64, list []Exposed, last bool) (whole, blocked bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := &t.exposed
	if t.closed != nil || len(list) == 0 && len(e.list) == 0 {
		return true, false
	}
	defer t.settle()
	shown := e.shown()
	added, whole := t.newExposures(list, shown)
	if v := t.account.reserve(e.costOf(added)); v == ledger.NoRoom && !last {
		return false, true
	} else if v != ledger.Granted {
		t.refuse(RefusedSeries, len(added))
		added, whole = nil, false
	}
	changed := e.update(stamp, list, shown)
	if n := e.prune(t.columns.ring.Oldest()); n > 0 {
		t.refuse(RefusedHistory, n)
	}
	if e.forget {
		e.forget = false
		t.freeLines(added)
	}
	e.add(stamp, added)
	if changed || len(added) > 0 {
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
	c := &t.columns
	freed := c.dropAll(func(id uint32, s *seriesState) bool { return len(s.name) == lineKey && s.name[0] == 0 && !used[id] })
	if freed > 0 {
		t.forgetFreed(freed)
		c.compact(c.ring.Slots(), freed > c.live/8)
	}
}

// Exposures appends the target's exposures.
func (t *Target) Exposures(dst []Exposure) []Exposure {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return append(dst, t.exposed.list...)
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
	r := &t.columns.ring
	first, end := r.Between(from, to)
	for i := range lookups {
		x := &lookups[i]
		x.Stamp = 0
		if s := t.columns.of(x.Exposure.Ref); s != nil {
			x.read(r, s.column, first, end)
		}
	}
}

// read reads the newest value with an index from first to before end.
func (x *Lookup) read(r *ring.Ring, column ring.Column, first, end int) {
	for i := end - 1; i >= first; i-- {
		slot := r.Slot(i)
		stamp := r.Stamp(slot)
		if stamp < x.Exposure.From {
			return
		}
		if stamp >= x.Exposure.Until {
			continue
		}
		if v, ok := r.At(column, slot); ok {
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
	r, s := &t.columns.ring, t.columns.of(x.Ref)
	if s == nil {
		return dst
	}
	for i, end := r.Between(max(from, x.From), min(to, x.Until-1)); i < end; i++ {
		slot := r.Slot(i)
		if v, ok := r.At(s.column, slot); ok {
			dst = append(dst, ring.Stamped{Stamp: r.Stamp(slot), Value: v / x.Scale})
		}
	}
	return dst
}

// Claimed returns how many devices the target assigns to a pod now.
func (t *Target) Claimed(namespace, pod string) (n int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if h := t.holdings.pods.entries[podKey{namespace, pod}]; h != nil {
		n = len(h.spans)
	}
	return n
}

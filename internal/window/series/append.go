// SPDX-License-Identifier: Apache-2.0

package series

import (
	"math"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/ledger"
	"github.com/gpupilot/gpupilot/internal/window/ring"
)

// Append stores the values of one scrape with the time of their collection. It
// returns the number of invalid Refs in the batch; the caller interns their keys
// again. It returns ErrRepeated, ErrDropped or ErrNoMemory if nothing was stored. A
// timestamp of 5 s or more before the newest means that the target's clock was set
// back: the window is emptied and starts again.
func (t *Target) Append(at time.Time, b *Batch) (unknown int, err error) {
	unknown, blocked, err := t.append(at.UnixNano(), b, false)
	if blocked {
		t.store.rebalance()
		unknown, _, err = t.append(at.UnixNano(), b, true)
	}
	t.store.rebalanceIfDue()
	return unknown, err
}

// append is Append. If other targets must free memory first, it stores nothing and
// returns blocked; on the last attempt, it overwrites the oldest slot instead.
func (t *Target) append(stamp int64, b *Batch, last bool) (unknown int, blocked bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.noMemory:
		return 0, false, ErrNoMemory
	case t.closed:
		return 0, false, ErrDropped
	}
	if newest, ok := t.ring.Newest(); ok && stamp <= newest {
		if newest-stamp < int64(rewindAfter) {
			t.store.repeated.Add(1)
			return 0, false, ErrRepeated
		}
		t.rewind(stamp)
	}
	if blocked := t.makeRoom(stamp); blocked && !last {
		return 0, true, nil
	}
	if t.ring.Slots() == 0 {
		return 0, false, ErrNoMemory
	}
	t.ring.Advance(stamp)
	t.newest.Store(stamp)
	unknown = t.fillSlot(b, stamp)
	t.lastPage = len(b.Points)
	t.unlimit(stamp)
	return unknown, false, nil
}

// fillSlot stores the values of a batch in the newest slot.
func (t *Target) fillSlot(b *Batch, stamp int64) (unknown int) {
	stored, widened := int64(0), false
	for _, p := range b.Points {
		if int(p.Ref.id) >= len(t.series) {
			unknown++
			continue
		}
		s := &t.series[p.Ref.id]
		if s.gen != p.Ref.gen || !s.live {
			unknown++
			continue
		}
		if math.IsNaN(p.Value) || math.IsInf(p.Value, 0) {
			continue
		}
		if !t.ring.Set(s.column, p.Value) {
			widened = true
			if !t.widen(p.Ref.id) {
				continue
			}
			s = &t.series[p.Ref.id]
			t.ring.Set(s.column, p.Value)
		}
		s.last = stamp
		stored++
	}
	if widened {
		t.widened()
	}
	t.store.samples.Add(stored)
	t.store.unknown.Add(uint64(unknown))
	return unknown
}

// widen makes the column of a series wider. If the memory limit has no room for that, the
// target's window becomes shorter. It returns false if the window cannot be shorter.
func (t *Target) widen(id uint32) bool {
	if t.reserve(t.ring.CostOfColumn(ring.Narrow)) != ledger.Granted {
		slots := min(int(t.ring.Bytes()*7/8/t.ring.PerSlotWidened()), t.ring.Slots())
		if slots < minSlots {
			t.refuse(RefusedHistory, 1)
			return false
		}
		t.short = t.short || slots < t.ring.Slots()
		t.compact(slots, true)
		t.limit()
	}
	s := &t.series[id]
	s.column = t.ring.Widen(s.column)
	return true
}

// widened ends a page with calls of widen. It frees the short columns if they are many:
// new series are seldom short.
func (t *Target) widened() {
	if _, short := t.ring.FreeColumns(); short > t.live/8 {
		t.compact(t.ring.Slots(), true)
	}
	t.settle()
}

// rewind empties the window of a target whose clock was set back to stamp. The
// devices keep their owners, from the new time on.
func (t *Target) rewind(stamp int64) {
	t.store.rewound.Add(1)
	t.ring.Clear()
	t.swept, t.cleared, t.limited = stamp, 0, 0
	for i := range t.series {
		t.series[i].last = 0
	}
	for _, d := range t.devices {
		if d.since > stamp {
			d.since = stamp
		}
	}
	t.rewindExposures(stamp)
	for _, h := range t.pods {
		for i := range h.spans {
			if n := &h.spans[i]; n.until == open {
				n.from = min(n.from, stamp)
			}
		}
	}
}

// makeRoom prepares the ring for a new slot. It grows a full ring that is shorter
// than Span; otherwise the oldest slot will be overwritten. Once per Span, it sweeps
// series without values. It returns true if the ring could grow after other targets
// free memory.
func (t *Target) makeRoom(stamp int64) (blocked bool) {
	cfg := &t.store.cfg
	if t.swept == 0 {
		t.swept = stamp
	} else if stamp-t.swept > int64(cfg.Span) {
		t.swept = stamp
		t.sweep(math.MinInt64)
		t.prune(stamp - int64(cfg.Span))
		t.settle()
	}
	if !t.ring.Full() {
		return false
	}
	oldest, filled := t.ring.Oldest()
	most := cfg.slots()
	if filled && stamp-oldest > int64(cfg.Span) || t.ring.Slots() >= most {
		t.short = false
		return false
	}
	defer t.settle()
	have := t.ring.Slots()
	for want := min(max(minSlots, have+ring.BlockSlots), most); want > have; want -= max(1, want/8) {
		switch t.reserve(t.ring.CostWith(want)) {
		case ledger.Granted:
			t.ring.Resize(want)
			return false
		case ledger.NoRoom:
			blocked = true
		}
		if want-have <= want/8 {
			break
		}
	}
	t.short = true
	t.limit()
	return blocked
}

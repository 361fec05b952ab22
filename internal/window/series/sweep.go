// SPDX-License-Identifier: Apache-2.0

package series

import (
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/ledger"
	"github.com/gpupilot/gpupilot/internal/window/ring"
)

const (
	// MaxSeries is the limit of series of one target. 16 GPUs with 7 MIG instances
	// each, or 128 GPUs without MIG, have up to 12,800 series with 100 fields.
	MaxSeries = 1 << 14
	// MaxShares is the limit of pods' shares of one device's fields: two fields of
	// 512 pods.
	MaxShares = 1024
	// A target has churn if it has more than twice the series of its last page plus
	// churnSlack. Series without a value for churnAfter are then removed.
	churnSlack = 64
	churnAfter = 2 * time.Minute
	// minSlots is the shortest window under the memory limit, in slots.
	minSlots = 8
)

// sweep frees the series without a value since a time or within the window, and the
// devices without series and owners.
func (t *Target) sweep(since int64) {
	oldest, ok := t.ring.Oldest()
	if !ok {
		return
	}
	since = max(since, oldest)
	freed := false
	for id := range t.series {
		if s := &t.series[id]; s.live && s.last < since {
			t.freeSeries(uint32(id))
			freed = true
		}
	}
	t.forgetFreed(freed)
	t.compact(t.ring.Slots(), false)
}

// clearChurn frees the series without a value for churnAfter. If full is set, a limit
// is reached, and it frees all series without a value in the newest slot. It runs at
// most once per page.
func (t *Target) clearChurn(full bool) {
	newest, ok := t.ring.Newest()
	if !ok || t.cleared == newest {
		return
	}
	t.cleared = newest
	since := newest - int64(churnAfter)
	if full {
		since = newest
	}
	t.sweep(since)
	t.settle()
}

// freeSeries frees one series. Call forgetFreed after the last one.
func (t *Target) freeSeries(id uint32) {
	s := &t.series[id]
	if s.own {
		delete(t.ids, s.name)
	}
	t.keys -= TextBytes(len(s.name))
	t.ring.FreeColumn(s.column)
	s.live, s.name = false, ""
	t.free = ledger.AppendFree(t.free, id, cap(t.series))
	t.live--
	t.store.series.Add(-1)
}

// forgetFreed removes the freed series, if there are any, from their devices. It also
// removes the devices without series and owners.
func (t *Target) forgetFreed(freed bool) {
	for uuid, d := range t.devices {
		if freed {
			t.dropFreed(d)
		}
		if len(d.fields) == 0 && len(d.shares) == 0 && len(d.owners) == 0 {
			t.lists -= d.listBytes()
			t.keys -= TextBytes(len(uuid))
			delete(t.devices, uuid)
		}
	}
	t.measured = slices.DeleteFunc(t.measured, func(d *device) bool { return d.util == 0 })
	if t.devPeak > 64 && len(t.devices) < t.devPeak/4 {
		t.devices, t.devPeak = rebuilt(t.devices), len(t.devices)
	}
	if freed {
		t.dropDeadExposures()
	}
	if t.idsPeak > 64 && len(t.ids) < t.idsPeak/4 {
		t.ids, t.idsPeak = rebuilt(t.ids), len(t.ids)
	}
}

func (t *Target) dropFreed(d *device) {
	d.fields = slices.DeleteFunc(d.fields, func(f deviceField) bool { return !t.series[f.id].live })
	if d.util > 0 && !t.series[d.util-1].live {
		d.util = 0
	}
	d.shares = slices.DeleteFunc(d.shares, func(s deviceShare) bool { return !t.series[s.id].live })
}

// compact rebuilds the ring with so many slots and without the free columns. Unless
// forced, it does so only if most columns are free.
func (t *Target) compact(slots int, forced bool) {
	free, _ := t.ring.FreeColumns()
	if !forced && (free < churnSlack || free < t.live) {
		return
	}
	var keep ring.Columns
	for id := range t.series {
		if s := &t.series[id]; s.live {
			s.column = keep.Keep(s.column)
		}
	}
	t.ring.Rebuild(slots, &keep)
	// Drop the ids after the last live series. Free ids before it stay.
	end := len(t.series)
	for end > 0 && !t.series[end-1].live {
		end--
	}
	if cap(t.series) > 2*end+churnSlack || forced && cap(t.series) > end+end/8+churnSlack {
		t.series = slices.Clone(t.series[:end])
		t.free = ledger.Fit(slices.DeleteFunc(t.free, func(id uint32) bool { return int(id) >= end }), cap(t.series))
	}
}

// shrink reduces the target's memory to so many bytes, if the writer's part allows.
// It first removes series without a present value and ended tenures. Then it shortens
// the window, down to minSlots. Last it evicts series, the newest first.
func (t *Target) shrink(most int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.charged.Load() <= most {
		return
	}
	defer t.settle()
	if newest, ok := t.ring.Newest(); ok {
		t.sweep(newest)
	}
	if t.past > 64 {
		t.forgetPast(open)
		t.pruneAt = 64
	}
	fixed := t.size() - t.ring.Bytes()
	slots := int(max(most-fixed, 0) / t.ring.PerSlot())
	if slots >= t.ring.Slots() && t.ring.Bytes()+fixed <= most {
		return
	}
	slots = min(max(slots, minSlots), t.ring.Slots())
	if over := fixed + int64(slots)*t.ring.PerSlot() - most; over > 0 {
		each := seriesBytes + fieldBytes + int64(8*slots)
		t.evict(int(over/each) + 1)
	}
	t.short = t.short || slots < t.ring.Slots()
	t.compact(slots, true)
	t.limit()
}

// evict frees n series, those with the highest ids first.
func (t *Target) evict(n int) {
	t.refuse(RefusedSeries, min(n, t.live))
	for id := len(t.series) - 1; id >= 0 && n > 0; id-- {
		if t.series[id].live {
			t.freeSeries(uint32(id))
			n--
		}
	}
	t.forgetFreed(true)
}

func (t *Target) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.closed = true
	for k := range t.pods {
		t.store.index.remove(k, t, false)
	}
	t.store.series.Add(-int64(t.live))
	t.live, t.ring = 0, ring.Ring{}
	t.series, t.free, t.ids, t.devices, t.measured, t.pods = nil, nil, nil, nil, nil, nil
	t.exposed = exposures{}
	t.store.changed.add(t)
	t.release()
}

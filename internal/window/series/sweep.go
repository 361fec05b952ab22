// SPDX-License-Identifier: Apache-2.0

package series

import "time"

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
	c := &t.columns
	oldest, ok := c.ring.Oldest()
	if !ok {
		return
	}
	since = max(since, oldest)
	t.forgetFreed(c.dropAll(func(_ uint32, s *seriesState) bool { return s.last < since }))
	c.compact(c.ring.Slots(), false)
}

// clearChurn frees the series without a value for churnAfter. If full is set, a limit
// is reached, and it frees all series without a value in the newest slot. It runs at
// most once per page.
func (t *Target) clearChurn(full bool) {
	newest, ok := t.columns.ring.Newest()
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

// forgetFreed removes n freed series from the other parts.
func (t *Target) forgetFreed(n int) {
	t.devices.forget(&t.columns)
	t.unpayFreed(n)
	if n > 0 && t.exposed.drop(func(x *Exposure) bool { return t.columns.of(x.Ref) == nil }) {
		t.store.changed.add(t)
	}
}

// shorten makes the window of a target shorter, for lack of memory.
func (t *Target) shorten(slots int) {
	t.limits.short = t.limits.short || slots < t.columns.ring.Slots()
	t.columns.compact(slots, true)
	t.limit()
}

// shrink reduces the target's memory to so many bytes, if the writer's part allows.
// It first removes series without a present value. Then it shortens
// the window, down to minSlots. Last it evicts series, the newest first.
func (t *Target) shrink(most int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed != nil || t.account.bytes.Load() <= most {
		return
	}
	defer t.settle()
	c, r := &t.columns, &t.columns.ring
	if newest, ok := r.Newest(); ok {
		t.sweep(newest)
	}
	fixed := t.size() - r.Bytes()
	slots := int(max(most-fixed, 0) / r.PerSlot())
	if slots >= r.Slots() && r.Bytes()+fixed <= most {
		return
	}
	slots = min(max(slots, minSlots), r.Slots())
	if over := fixed + int64(slots)*r.PerSlot() - most; over > 0 {
		n := int(over/(seriesBytes+fieldBytes+int64(8*slots))) + 1
		t.refuse(RefusedSeries, min(n, c.live))
		t.forgetFreed(c.evict(n))
	}
	t.shorten(slots)
}

func (t *Target) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed != nil {
		return
	}
	t.closed = ErrDropped
	t.holdings.close()
	t.dropPayers()
	t.columns, t.devices, t.exposed = columns{}, devices{}, exposures{}
	t.store.changed.add(t)
	t.account.set(0, 0, 0)
	t.store.limited.remove(t)
}

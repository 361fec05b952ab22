// SPDX-License-Identifier: Apache-2.0

package ring

import "github.com/gpupilot/gpupilot/internal/window/ledger"

// AddColumn adds an empty column.
func (r *Ring) AddColumn(wide bool) Column {
	if wide {
		return Column{Index: r.wide.add(len(r.stamps)), Wide: true}
	}
	return Column{Index: r.narrow.add(len(r.stamps))}
}

// FreeColumn makes a column available to AddColumn.
func (r *Ring) FreeColumn(c Column) {
	if c.Wide {
		r.wide.free = ledger.AppendFree(r.wide.free, c.Index, r.wide.stride)
	} else {
		r.narrow.free = ledger.AppendFree(r.narrow.free, c.Index, r.narrow.stride)
	}
}

// FreeColumns returns the number of columns that FreeColumn made available.
func (r *Ring) FreeColumns() int { return len(r.narrow.free) + len(r.wide.free) }

// Bytes returns the size of the ring's arrays, including spare columns.
func (r *Ring) Bytes() int64 { return r.bytesOf(len(r.stamps), r.narrow.stride, r.wide.stride) }

// bytesWith returns the size after Resize(slots).
func (r *Ring) bytesWith(slots int) int64 { return r.bytesOf(slots, r.narrow.cols, r.wide.cols) }

func (r *Ring) bytesOf(slots, narrow, wide int) int64 {
	return int64(8*slots) + cellBytes(slots, narrow, 4) + cellBytes(slots, wide, 8)
}

// CostWith returns the cost of Resize(slots).
func (r *Ring) CostWith(slots int) ledger.Cost {
	to := r.bytesWith(slots)
	c := ledger.Cost{Peak: to, Net: to - r.Bytes()}
	if r.extends() { // only the last block is copied
		c.Peak = min(to, c.Net+int64(8*len(r.stamps))+r.bytesOf(BlockSlots, r.narrow.stride, r.wide.stride))
	}
	return c
}

// PerSlot returns the size of a slot without the free columns.
func (r *Ring) PerSlot() int64 {
	return int64(8 + 4*(r.narrow.cols-len(r.narrow.free)) + 8*(r.wide.cols-len(r.wide.free)))
}

// CostOfColumn returns the most that AddColumn can cost.
func (r *Ring) CostOfColumn(wide bool) ledger.Cost {
	if wide {
		return r.wide.costOfColumn(len(r.stamps), 8)
	}
	return r.narrow.costOfColumn(len(r.stamps), 4)
}

// Rebuild replaces the ring by one of so many slots, with the newest values of the
// given columns, in this order.
func (r *Ring) Rebuild(slots int, narrow, wide []int32) {
	used := min(r.used, slots)
	next := Ring{stamps: make([]int64, slots), used: used, head: max(used-1, 0)}
	from := make([]int, used)
	for i := range used {
		from[i] = r.Slot(r.used - used + i)
		next.stamps[i] = r.stamps[from[i]]
	}
	next.narrow = r.narrow.only(slots, from, narrow)
	next.wide = r.wide.only(slots, from, wide)
	*r = next
}

// extends reports whether the ring can grow at its end without moving values: the
// newest slot is the last one used, and there are no spare columns.
func (r *Ring) extends() bool {
	return r.head == r.used-1 && r.narrow.stride == r.narrow.cols && r.wide.stride == r.wide.cols
}

// Resize grows the ring to so many slots, without spare columns.
func (r *Ring) Resize(slots int) {
	if !r.extends() {
		narrow, wide := r.narrow.free, r.wide.free
		r.Rebuild(slots, columns(r.narrow.cols), columns(r.wide.cols))
		r.narrow.free, r.wide.free = ledger.Fit(narrow, r.narrow.stride), ledger.Fit(wide, r.wide.stride)
		return
	}
	stamps := make([]int64, slots)
	copy(stamps, r.stamps)
	r.narrow.extend(len(r.stamps), slots)
	r.wide.extend(len(r.stamps), slots)
	r.stamps = stamps
}

func columns(n int) []int32 {
	all := make([]int32, n)
	for i := range all {
		all[i] = int32(i)
	}
	return all
}

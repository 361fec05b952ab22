// SPDX-License-Identifier: Apache-2.0

package ring

import "github.com/gpupilot/gpupilot/internal/window/ledger"

// AddColumn adds an empty column.
func (r *Ring) AddColumn(w Width) Column {
	c := Column{Width: w}
	switch slots := len(r.stamps); w {
	case Short:
		c.Index = r.short.add(slots)
	case Narrow:
		c.Index = r.narrow.add(slots)
	default:
		c.Index = r.wide.add(slots)
	}
	return c
}

// FreeColumn makes a column available to AddColumn.
func (r *Ring) FreeColumn(c Column) {
	switch c.Width {
	case Short:
		r.short.release(c.Index)
	case Narrow:
		r.narrow.release(c.Index)
	default:
		r.wide.release(c.Index)
	}
}

// Widen moves a short column's values to a narrow one, which it returns.
func (r *Ring) Widen(c Column) Column {
	to := r.AddColumn(Narrow)
	for i := range r.used {
		slot := r.Slot(i)
		if v, ok := r.At(c, slot); ok {
			r.narrow.row(slot)[to.Index] = float32(v)
		}
	}
	r.FreeColumn(c)
	return to
}

// FreeColumns returns the number of columns that FreeColumn made available, and how many
// of them are short.
func (r *Ring) FreeColumns() (all, short int) {
	return len(r.short.free) + len(r.narrow.free) + len(r.wide.free), len(r.short.free)
}

// Bytes returns the size of the ring's arrays, including spare columns.
func (r *Ring) Bytes() int64 {
	return r.bytesOf(len(r.stamps), r.short.stride, r.narrow.stride, r.wide.stride)
}

// bytesWith returns the size after Resize(slots).
func (r *Ring) bytesWith(slots int) int64 {
	return r.bytesOf(slots, r.short.cols, r.narrow.cols, r.wide.cols)
}

func (r *Ring) bytesOf(slots, short, narrow, wide int) int64 {
	return int64(8*slots) + cellBytes(slots, short, 2) + cellBytes(slots, narrow, 4) + cellBytes(slots, wide, 8)
}

// CostWith returns the cost of Resize(slots).
func (r *Ring) CostWith(slots int) ledger.Cost {
	to := r.bytesWith(slots)
	c := ledger.Cost{Peak: to, Net: to - r.Bytes()}
	if r.extends() { // only the last block is copied
		c.Peak = min(to, c.Net+int64(8*len(r.stamps))+r.bytesOf(BlockSlots, r.short.stride, r.narrow.stride, r.wide.stride))
	}
	return c
}

// PerSlot returns the size of a slot without the free columns.
func (r *Ring) PerSlot() int64 {
	return int64(8 + 2*r.short.inUse() + 4*r.narrow.inUse() + 8*r.wide.inUse())
}

// SlotsWidened returns the number of slots that take no more than now after Rebuild and
// Widen; at most those that there are.
func (r *Ring) SlotsWidened() int {
	spare := more(r.narrow.inUse())
	n := min(int(r.Bytes()*7/8/(r.PerSlot()+int64(4*spare))), r.Slots())
	for n > 0 && r.bytesOf(n, r.short.inUse(), r.narrow.inUse()+spare, r.wide.inUse()) > r.Bytes() {
		n--
	}
	return n
}

// CostOfColumn returns the most that AddColumn can cost.
func (r *Ring) CostOfColumn(w Width) ledger.Cost {
	switch slots := len(r.stamps); w {
	case Short:
		return r.short.costOfColumn(slots, 2)
	case Narrow:
		return r.narrow.costOfColumn(slots, 4)
	default:
		return r.wide.costOfColumn(slots, 8)
	}
}

// Columns are those that Rebuild keeps. The zero Columns are none.
type Columns struct{ from [widths][]int32 }

// Keep adds a column, and returns its place after Rebuild.
func (k *Columns) Keep(c Column) Column {
	from := &k.from[c.Width]
	*from = append(*from, c.Index)
	return Column{Index: int32(len(*from) - 1), Width: c.Width}
}

// Rebuild replaces the ring by one of so many slots, with the newest values of the
// given columns.
func (r *Ring) Rebuild(slots int, keep *Columns) {
	used := min(r.used, slots)
	next := Ring{stamps: make([]int64, slots), used: used, head: max(used-1, 0)}
	from := make([]int, used)
	for i := range used {
		from[i] = r.Slot(r.used - used + i)
		next.stamps[i] = r.stamps[from[i]]
	}
	next.short = r.short.only(slots, from, keep.from[Short])
	next.narrow = r.narrow.only(slots, from, keep.from[Narrow])
	next.wide = r.wide.only(slots, from, keep.from[Wide])
	*r = next
}

// extends reports whether the ring can grow at its end without moving values: the
// newest slot is the last one used, and there are no spare columns.
func (r *Ring) extends() bool {
	return r.head == r.used-1 && r.short.stride == r.short.cols && r.narrow.stride == r.narrow.cols && r.wide.stride == r.wide.cols
}

// Resize grows the ring to so many slots, without spare columns.
func (r *Ring) Resize(slots int) {
	if !r.extends() {
		short, narrow, wide := r.short.free, r.narrow.free, r.wide.free
		r.Rebuild(slots, &Columns{[...][]int32{columns(r.short.cols), columns(r.narrow.cols), columns(r.wide.cols)}})
		r.short.refit(short)
		r.narrow.refit(narrow)
		r.wide.refit(wide)
		return
	}
	stamps := make([]int64, slots)
	copy(stamps, r.stamps)
	r.short.extend(len(r.stamps), slots)
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

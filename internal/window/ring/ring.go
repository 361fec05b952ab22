// SPDX-License-Identifier: Apache-2.0

// Package ring stores the samples of one target: a ring of slots, each with a
// timestamp, and a row of values for each Width.
package ring

import "math"

// Ring is the window of one target. A value can be missing. The rows have no pointers,
// so that the garbage collector does not scan them. The zero Ring has no slots; Resize
// adds them. A Ring is not safe for concurrent use.
type Ring struct {
	stamps []int64 // ns since 1970, ascending from oldest to newest
	short  cells[uint16]
	narrow cells[float32]
	wide   cells[float64]
	head   int // the newest slot, if used > 0
	used   int // slots that hold a stamp
}

// Column is a series' place in the rows of a Ring.
type Column struct {
	Index int32
	Width Width
}

// Stamped is a value with its time in ns since 1970.
type Stamped struct {
	Stamp int64
	Value float64
}

// Slots returns the number of slots.
func (r *Ring) Slots() int { return len(r.stamps) }

// Len returns the number of slots that hold a timestamp.
func (r *Ring) Len() int { return r.used }

// Full reports whether all slots hold a timestamp.
func (r *Ring) Full() bool { return r.used == len(r.stamps) }

// Stamp returns the timestamp of a slot, in ns since 1970.
func (r *Ring) Stamp(slot int) int64 { return r.stamps[slot] }

// Slot returns the slot of the i-th timestamp; 0 is the oldest.
func (r *Ring) Slot(i int) int {
	s := r.head - (r.used - 1) + i
	if s < 0 {
		s += len(r.stamps)
	}
	return s
}

// Newest returns the newest timestamp. ok is false in an empty ring.
func (r *Ring) Newest() (stamp int64, ok bool) {
	if r.used == 0 {
		return 0, false
	}
	return r.stamps[r.head], true
}

// Oldest returns the oldest timestamp. ok is false in an empty ring.
func (r *Ring) Oldest() (stamp int64, ok bool) {
	if r.used == 0 {
		return 0, false
	}
	return r.stamps[r.Slot(0)], true
}

// Advance begins a slot without values. In a full ring, it replaces the oldest slot.
func (r *Ring) Advance(stamp int64) {
	if r.used < len(r.stamps) {
		r.used++
	}
	if r.head++; r.head >= len(r.stamps) {
		r.head = 0
	}
	r.stamps[r.head] = stamp
	r.short.blank(r.head)
	r.narrow.blank(r.head)
	r.wide.blank(r.head)
}

// Set stores a value in the newest slot. It returns false, and stores nothing, if the
// column is too short for it.
func (r *Ring) Set(c Column, v float64) bool {
	switch c.Width {
	case Short:
		n, ok := short(v)
		if ok {
			r.short.row(r.head)[c.Index] = n
		}
		return ok
	case Narrow:
		r.narrow.row(r.head)[c.Index] = float32(v)
	default:
		r.wide.row(r.head)[c.Index] = v
	}
	return true
}

// At returns the value of a column in a slot, if there is one.
func (r *Ring) At(c Column, slot int) (float64, bool) {
	switch c.Width {
	case Short:
		n := r.short.row(slot)[c.Index]
		return float64(n), n != noShort
	case Narrow:
		v := r.narrow.row(slot)[c.Index]
		return narrow(v), v == v
	default:
		v := r.wide.row(slot)[c.Index]
		return v, v == v
	}
}

// Clear removes all timestamps and values. The slots and the columns stay.
func (r *Ring) Clear() { r.used, r.head = 0, 0 }

// short returns a value as a short one, if a narrow column would give back the same.
func short(v float64) (n uint16, ok bool) {
	f := float32(v)
	if f >= 0 && f < noShort {
		n = uint16(f)
		return n, float32(n) == f
	}
	return noShort, f != f // NaN is missing in each width
}

// narrow returns the decimal number that was stored as float32, rounded to the
// decimals that float32 can represent: six below 8 (ratios), five below 64, four
// below 512, three below 8,192 (watts from milliwatts), two below 65,536. Up to these
// limits, the spacing of float32 is less than the last decimal.
func narrow(f float32) float64 {
	x := float64(f)
	if x == math.Trunc(x) {
		return x
	}
	switch a := math.Abs(x); {
	case a < 8:
		return math.Round(x*1e6) / 1e6
	case a < 64:
		return math.Round(x*1e5) / 1e5
	case a < 512:
		return math.Round(x*1e4) / 1e4
	case a < 8192:
		return math.Round(x*1e3) / 1e3
	case a < 65536:
		return math.Round(x*1e2) / 1e2
	}
	return x
}

// SPDX-License-Identifier: Apache-2.0

package series

import (
	"math"
	"time"
)

// ring is the window of one target: slots in a ring, each a stamp and one row
// of narrow and one of wide values. A value that is not there is NaN. Nothing
// in it points anywhere, so the garbage collector has nothing to scan.
type ring struct {
	stamps []int64 // ns since 1970, ascending from oldest to newest
	narrow cells[float32]
	wide   cells[float64]
	head   int // the newest slot, if used > 0
	used   int // slots that hold a stamp
}

// cells are rows of stride values, of which the columns below cols are in use
// or free.
type cells[T float32 | float64] struct {
	v      []T // [slot][stride]
	stride int
	cols   int
	free   []int32
}

func (r *ring) slots() int { return len(r.stamps) }
func (r *ring) full() bool { return r.used == len(r.stamps) }

// slot is the place of the i-th stamp, 0 is the oldest.
func (r *ring) slot(i int) int {
	s := r.head - (r.used - 1) + i
	if s < 0 {
		s += len(r.stamps)
	}
	return s
}

func (r *ring) newest() (int64, bool) {
	if r.used == 0 {
		return 0, false
	}
	return r.stamps[r.head], true
}

func (r *ring) oldest() (int64, bool) {
	if r.used == 0 {
		return 0, false
	}
	return r.stamps[r.slot(0)], true
}

// advance begins a slot, empty of values, over the oldest if the ring is full.
func (r *ring) advance(stamp int64) {
	if r.used < len(r.stamps) {
		r.used++
	}
	if r.head++; r.head >= len(r.stamps) {
		r.head = 0
	}
	r.stamps[r.head] = stamp
	r.narrow.blank(r.head)
	r.wide.blank(r.head)
}

// set gives the newest slot a value.
func (r *ring) set(wide bool, col int32, v float64) {
	if wide {
		r.wide.v[r.head*r.wide.stride+int(col)] = v
		return
	}
	r.narrow.v[r.head*r.narrow.stride+int(col)] = float32(v)
}

// at is the value of a column in a slot.
func (r *ring) at(wide bool, col int32, slot int) (float64, bool) {
	if wide {
		v := r.wide.v[slot*r.wide.stride+int(col)]
		return v, v == v
	}
	v := r.narrow.v[slot*r.narrow.stride+int(col)]
	return narrow(v), v == v
}

// narrow gives back the decimal number that was stored as float32, as far as
// an exposition writes one: six decimals below 8 (ratios), five below 64, four
// below 512, three below 8,192 (watts of milliwatts), two below 65,536. At
// these bounds half the spacing of float32 is less than half the last decimal.
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

func (r *ring) clear() { r.used, r.head = 0, 0 }

func (r *ring) addColumn(wide bool) int32 {
	if wide {
		return r.wide.add(len(r.stamps))
	}
	return r.narrow.add(len(r.stamps))
}

func (r *ring) freeColumn(wide bool, col int32) {
	if wide {
		r.wide.free = append(r.wide.free, col)
	} else {
		r.narrow.free = append(r.narrow.free, col)
	}
}

// bytes is the size of the ring's arrays, spare columns included.
func (r *ring) bytes() int64 {
	return int64(8*cap(r.stamps) + 4*cap(r.narrow.v) + 8*cap(r.wide.v) + 4*cap(r.narrow.free) + 4*cap(r.wide.free))
}

// bytesWith is the size after resize(slots).
func (r *ring) bytesWith(slots int) int64 {
	return int64(slots)*int64(8+4*r.narrow.cols+8*r.wide.cols) + int64(4*cap(r.narrow.free)+4*cap(r.wide.free))
}

// perSlot is what a slot takes without the columns that are free.
func (r *ring) perSlot() int64 {
	return int64(8 + 4*(r.narrow.cols-len(r.narrow.free)) + 8*(r.wide.cols-len(r.wide.free)))
}

// costOfColumn is what addColumn takes at most.
func (r *ring) costOfColumn(wide bool) cost {
	if wide {
		return r.wide.costOfColumn(len(r.stamps), 8)
	}
	return r.narrow.costOfColumn(len(r.stamps), 4)
}

// rebuild moves the newest values to a ring of so many slots that has the given
// columns only, in this order.
func (r *ring) rebuild(slots int, narrow, wide []int32) {
	used := min(r.used, slots)
	next := ring{stamps: make([]int64, slots), used: used, head: max(used-1, 0)}
	from := make([]int, used)
	for i := range used {
		from[i] = r.slot(r.used - used + i)
		next.stamps[i] = r.stamps[from[i]]
	}
	next.narrow = r.narrow.only(slots, from, narrow)
	next.wide = r.wide.only(slots, from, wide)
	*r = next
}

// resize moves everything to a ring of more slots, with no spare columns.
func (r *ring) resize(slots int) {
	stamps := make([]int64, slots)
	n := make([]float32, slots*r.narrow.cols)
	w := make([]float64, slots*r.wide.cols)
	for i := range r.used {
		s := r.slot(i)
		stamps[i] = r.stamps[s]
		copy(n[i*r.narrow.cols:(i+1)*r.narrow.cols], r.narrow.v[s*r.narrow.stride:])
		copy(w[i*r.wide.cols:(i+1)*r.wide.cols], r.wide.v[s*r.wide.stride:])
	}
	r.stamps = stamps
	r.narrow.v, r.narrow.stride = n, r.narrow.cols
	r.wide.v, r.wide.stride = w, r.wide.cols
	r.head = max(r.used-1, 0)
}

func (c *cells[T]) blank(slot int) {
	nan := T(math.NaN())
	row := c.v[slot*c.stride : (slot+1)*c.stride]
	for i := range row {
		row[i] = nan
	}
}

// add returns a column that holds nothing in any slot.
func (c *cells[T]) add(slots int) int32 {
	if n := len(c.free); n > 0 {
		col := c.free[n-1]
		c.free = c.free[:n-1]
		for i := int(col); i < len(c.v); i += c.stride {
			c.v[i] = T(math.NaN())
		}
		return col
	}
	if c.cols == c.stride {
		c.widen(slots)
	}
	c.cols++
	return int32(c.cols - 1)
}

func (c *cells[T]) widen(slots int) {
	stride := c.stride + max(4, c.stride/8)
	v := make([]T, slots*stride)
	for s := range slots {
		n := copy(v[s*stride:(s+1)*stride], c.v[s*c.stride:(s+1)*c.stride])
		for i := s*stride + n; i < (s+1)*stride; i++ {
			v[i] = T(math.NaN())
		}
	}
	c.v, c.stride = v, stride
}

// costOfColumn is what add takes at most: a free column is there already.
func (c *cells[T]) costOfColumn(slots, size int) cost {
	if len(c.free) > 0 || c.cols < c.stride {
		return cost{}
	}
	more := max(4, c.stride/8)
	return cost{int64(slots * (c.stride + more) * size), int64(slots * more * size)}
}

// only is a copy of some slots and columns, in a block of so many slots.
func (c *cells[T]) only(slots int, from []int, cols []int32) cells[T] {
	next := cells[T]{v: make([]T, slots*len(cols)), stride: len(cols), cols: len(cols)}
	for i, s := range from {
		row := next.v[i*next.stride : (i+1)*next.stride]
		for j, col := range cols {
			row[j] = c.v[s*c.stride+int(col)]
		}
	}
	return next
}

// latest is a column's newest value that is not older than notBefore.
func (r *ring) latest(s *serie, notBefore int64) (Sample, bool) {
	if s.last < notBefore {
		return Sample{}, false
	}
	for i := r.used - 1; i >= 0; i-- {
		slot := r.slot(i)
		if r.stamps[slot] < notBefore {
			break
		}
		if v, ok := r.at(s.wide, s.col, slot); ok {
			return Sample{time.Unix(0, r.stamps[slot]), v}, true
		}
	}
	return Sample{}, false
}

// step is what the column changed by between its two newest values, of which
// the newer must not be older than notBefore and the older not than from.
func (r *ring) step(s *serie, from, notBefore int64) (step Step, ok bool) {
	if s.last < notBefore {
		return Step{}, false
	}
	for i := r.used - 1; i >= 0; i-- {
		slot := r.slot(i)
		if stamp := r.stamps[slot]; stamp < from || !ok && stamp < notBefore {
			break
		}
		v, there := r.at(s.wide, s.col, slot)
		switch {
		case !there:
		case !ok:
			step.To, ok = Sample{time.Unix(0, r.stamps[slot]), v}, true
		default:
			step.From = Sample{time.Unix(0, r.stamps[slot]), v}
			return step, true
		}
	}
	return Step{}, false
}

// rate is the increase per second of a counter's column from its first value
// at or after from to its newest, which must not be older than notBefore. A
// decrease is a counter that began again at zero.
func (r *ring) rate(s *serie, from, notBefore int64) (Sample, bool) {
	var sum, prev float64
	var first, last int64
	for i := r.search(from); i < r.used; i++ {
		slot := r.slot(i)
		v, ok := r.at(s.wide, s.col, slot)
		if !ok {
			continue
		}
		switch {
		case first == 0:
			first = r.stamps[slot]
		case v >= prev:
			sum += v - prev
		default:
			sum += v
		}
		prev, last = v, r.stamps[slot]
	}
	if first == 0 || last == first || last < notBefore {
		return Sample{}, false
	}
	return Sample{time.Unix(0, last), sum / time.Duration(last-first).Seconds()}, true
}

// search is the index of the first stamp at or after t.
func (r *ring) search(t int64) int {
	lo, hi := 0, r.used
	for lo < hi {
		mid := (lo + hi) / 2
		if r.stamps[r.slot(mid)] < t {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

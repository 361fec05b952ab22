// SPDX-License-Identifier: Apache-2.0

package series

import (
	"math"
	"time"
	"unsafe"
)

// ring is the window of one target: a ring of slots, each with a timestamp, a row of
// narrow values and a row of wide values. A missing value is NaN. The rows have no
// pointers, so that the garbage collector does not scan them.
type ring struct {
	stamps []int64 // ns since 1970, ascending from oldest to newest
	narrow cells[float32]
	wide   cells[float64]
	head   int // the newest slot, if used > 0
	used   int // slots that hold a stamp
}

// cells is rows of stride values each. The columns below cols are in use or free. The
// rows are in blocks, so that a ring can grow without a copy: if all targets grow in
// the same second, copies would double the memory of the process.
type cells[T float32 | float64] struct {
	blocks [][]T // of blockSlots rows each; the last one may have fewer
	stride int
	cols   int
	free   []int32
}

// blockSlots is the number of rows of a block. With 32 gauges it takes one page.
const blockSlots = 32

// blockHeader is the size of a block's entry in the list of blocks.
const blockHeader = int64(unsafe.Sizeof([]float32{}))

// newBlocks returns blocks for so many rows.
func newBlocks[T float32 | float64](slots, stride int) [][]T {
	if stride == 0 {
		return nil
	}
	blocks := make([][]T, blocksOf(slots))
	for i := range blocks {
		blocks[i] = make([]T, min(blockSlots, slots-i*blockSlots)*stride)
	}
	return blocks
}

func blocksOf(slots int) int { return (slots + blockSlots - 1) / blockSlots }

// row returns the row of a slot.
func (c *cells[T]) row(slot int) []T {
	if c.stride == 0 {
		return nil
	}
	i := slot % blockSlots * c.stride
	return c.blocks[slot/blockSlots][i : i+c.stride]
}

// cellBytes returns the bytes of cells with so many rows and columns of a size, and of
// the list of free columns.
func cellBytes(slots, stride, size int) int64 {
	if stride == 0 {
		return 0
	}
	return int64(slots*stride*size) + int64(blocksOf(slots))*blockHeader + int64(4*stride)
}

func (r *ring) slots() int { return len(r.stamps) }
func (r *ring) full() bool { return r.used == len(r.stamps) }

// slot returns the slot of the i-th timestamp; 0 is the oldest.
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

// advance begins a slot without values. In a full ring, it replaces the oldest slot.
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

// set stores a value in the newest slot.
func (r *ring) set(wide bool, col int32, v float64) {
	if wide {
		r.wide.row(r.head)[col] = v
		return
	}
	r.narrow.row(r.head)[col] = float32(v)
}

// at returns the value of a column in a slot, if there is one.
func (r *ring) at(wide bool, col int32, slot int) (float64, bool) {
	if wide {
		v := r.wide.row(slot)[col]
		return v, v == v
	}
	v := r.narrow.row(slot)[col]
	return narrow(v), v == v
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

func (r *ring) clear() { r.used, r.head = 0, 0 }

func (r *ring) addColumn(wide bool) int32 {
	if wide {
		return r.wide.add(len(r.stamps))
	}
	return r.narrow.add(len(r.stamps))
}

func (r *ring) freeColumn(wide bool, col int32) {
	if wide {
		r.wide.free = appendFree(r.wide.free, col, r.wide.stride)
	} else {
		r.narrow.free = appendFree(r.narrow.free, col, r.narrow.stride)
	}
}

// appendFree appends to a list of free ids, whose capacity never exceeds most. Memory for
// that is charged before anything is freed: freeing never takes memory.
func appendFree[T any](list []T, id T, most int) []T {
	if len(list) == cap(list) {
		list = append(make([]T, 0, min(2*len(list)+8, most)), list...)
	}
	return append(list, id)
}

// fitted returns a list of free ids with a capacity of at most most.
func fitted[T any](list []T, most int) []T {
	if cap(list) <= most {
		return list
	}
	return append(make([]T, 0, most), list...)
}

// bytes returns the size of the ring's arrays, including spare columns.
func (r *ring) bytes() int64 { return r.bytesOf(len(r.stamps), r.narrow.stride, r.wide.stride) }

// bytesWith returns the size after resize(slots).
func (r *ring) bytesWith(slots int) int64 { return r.bytesOf(slots, r.narrow.cols, r.wide.cols) }

func (r *ring) bytesOf(slots, narrow, wide int) int64 {
	return int64(8*slots) + cellBytes(slots, narrow, 4) + cellBytes(slots, wide, 8)
}

// costWith returns the cost of resize(slots).
func (r *ring) costWith(slots int) cost {
	to := r.bytesWith(slots)
	c := cost{to, to - r.bytes()}
	if r.extends() { // only the last block is copied
		c.peak = min(to, c.net+int64(8*len(r.stamps))+r.bytesOf(blockSlots, r.narrow.stride, r.wide.stride))
	}
	return c
}

// perSlot returns the size of a slot without the free columns.
func (r *ring) perSlot() int64 {
	return int64(8 + 4*(r.narrow.cols-len(r.narrow.free)) + 8*(r.wide.cols-len(r.wide.free)))
}

// costOfColumn returns the most that addColumn can cost.
func (r *ring) costOfColumn(wide bool) cost {
	if wide {
		return r.wide.costOfColumn(len(r.stamps), 8)
	}
	return r.narrow.costOfColumn(len(r.stamps), 4)
}

// rebuild replaces the ring by one of so many slots, with the newest values of the
// given columns, in this order.
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

// extends reports whether the ring can grow at its end without moving values: the
// newest slot is the last one used, and there are no spare columns.
func (r *ring) extends() bool {
	return r.head == r.used-1 && r.narrow.stride == r.narrow.cols && r.wide.stride == r.wide.cols
}

// resize grows the ring to so many slots, without spare columns.
func (r *ring) resize(slots int) {
	if !r.extends() {
		narrow, wide := r.narrow.free, r.wide.free
		r.rebuild(slots, columns(r.narrow.cols), columns(r.wide.cols))
		r.narrow.free, r.wide.free = fitted(narrow, r.narrow.stride), fitted(wide, r.wide.stride)
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

// extend adds rows at the end.
func (c *cells[T]) extend(slots, want int) {
	if c.stride == 0 {
		return
	}
	whole := slots / blockSlots
	blocks := make([][]T, blocksOf(want))
	copy(blocks, c.blocks[:whole])
	for i := whole; i < len(blocks); i++ {
		blocks[i] = make([]T, min(blockSlots, want-i*blockSlots)*c.stride)
		if i < len(c.blocks) {
			copy(blocks[i], c.blocks[i])
		}
	}
	c.blocks = blocks
}

func (c *cells[T]) blank(slot int) {
	nan := T(math.NaN())
	row := c.row(slot)
	for i := range row {
		row[i] = nan
	}
}

// add returns an empty column.
func (c *cells[T]) add(slots int) int32 {
	if n := len(c.free); n > 0 {
		col := c.free[n-1]
		c.free = c.free[:n-1]
		for slot := range slots {
			c.row(slot)[col] = T(math.NaN())
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
	next := cells[T]{stride: c.stride + c.more(), cols: c.cols}
	next.blocks = newBlocks[T](slots, next.stride)
	for slot := range slots {
		row := next.row(slot)
		for i := copy(row, c.row(slot)); i < len(row); i++ {
			row[i] = T(math.NaN())
		}
	}
	*c = next
}

// more returns the number of columns that widen adds.
func (c *cells[T]) more() int { return max(4, c.stride/8) }

// costOfColumn returns the most that add can cost. A free column costs nothing.
func (c *cells[T]) costOfColumn(slots, size int) cost {
	if len(c.free) > 0 || c.cols < c.stride {
		return cost{}
	}
	to := cellBytes(slots, c.stride+c.more(), size)
	return cost{to, to - cellBytes(slots, c.stride, size)}
}

// only returns a copy of the given rows and columns, with room for so many slots.
func (c *cells[T]) only(slots int, from []int, cols []int32) cells[T] {
	next := cells[T]{blocks: newBlocks[T](slots, len(cols)), stride: len(cols), cols: len(cols)}
	for i, s := range from {
		row, was := next.row(i), c.row(s)
		for j, col := range cols {
			row[j] = was[col]
		}
	}
	return next
}

// latest returns a column's newest value that is not older than notBefore.
func (r *ring) latest(s *seriesState, notBefore int64) (Sample, bool) {
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

// step returns a column's two newest values. The newest must not be older than
// notBefore, and the one before it not older than from.
func (r *ring) step(s *seriesState, from, notBefore int64) (step Step, ok bool) {
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

// rate returns the increase per second of a counter's column, from its first value at
// or after from to its newest, which must not be older than notBefore. A decrease is
// a restart of the counter at zero.
func (r *ring) rate(s *seriesState, from, notBefore int64) (Sample, bool) {
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

// search returns the index of the first timestamp at or after t.
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

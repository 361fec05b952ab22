// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"math"
	"unsafe"

	"github.com/gpupilot/gpupilot/internal/window/ledger"
)

// number is a kind of value.
type number interface{ uint16 | float32 | float64 }

// noShort is the missing value of a row of short values.
const noShort = math.MaxUint16

// missing returns the value of a cell without one.
func missing[T number]() (v T) {
	switch v := any(&v).(type) {
	case *uint16:
		*v = noShort
	case *float32:
		*v = float32(math.NaN())
	case *float64:
		*v = math.NaN()
	}
	return v
}

// cells is rows of stride values each. The columns below cols are in use or free. The
// rows are in blocks, so that a ring can grow without a copy: if all targets grow in
// the same second, copies would double the memory of the process.
type cells[T number] struct {
	blocks [][]T // of BlockSlots rows each; the last one may have fewer
	stride int
	cols   int
	free   []int32
}

// BlockSlots is the number of rows of a block. With 32 gauges it takes one page.
const BlockSlots = 32

// blockHeader is the size of a block's entry in the list of blocks.
const blockHeader = int64(unsafe.Sizeof([]float32{}))

// newBlocks returns blocks for so many rows.
func newBlocks[T number](slots, stride int) [][]T {
	if stride == 0 {
		return nil
	}
	blocks := make([][]T, blocksOf(slots))
	for i := range blocks {
		blocks[i] = make([]T, min(BlockSlots, slots-i*BlockSlots)*stride)
	}
	return blocks
}

func blocksOf(slots int) int { return (slots + BlockSlots - 1) / BlockSlots }

// row returns the row of a slot.
func (c *cells[T]) row(slot int) []T {
	if c.stride == 0 {
		return nil
	}
	i := slot % BlockSlots * c.stride
	return c.blocks[slot/BlockSlots][i : i+c.stride]
}

// cellBytes returns the bytes of cells with so many rows and columns of a size, and of
// the list of free columns.
func cellBytes(slots, stride, size int) int64 {
	if stride == 0 {
		return 0
	}
	return int64(slots*stride*size) + int64(blocksOf(slots))*blockHeader + int64(4*stride)
}

// extend adds rows at the end.
func (c *cells[T]) extend(slots, want int) {
	if c.stride == 0 {
		return
	}
	whole := slots / BlockSlots
	blocks := make([][]T, blocksOf(want))
	copy(blocks, c.blocks[:whole])
	for i := whole; i < len(blocks); i++ {
		blocks[i] = make([]T, min(BlockSlots, want-i*BlockSlots)*c.stride)
		if i < len(c.blocks) {
			copy(blocks[i], c.blocks[i])
		}
	}
	c.blocks = blocks
}

func (c *cells[T]) blank(slot int) {
	none := missing[T]()
	row := c.row(slot)
	for i := range row {
		row[i] = none
	}
}

// add returns the index of an empty column: a free one, or a new one.
func (c *cells[T]) add(slots int) int32 {
	if n := len(c.free); n > 0 {
		col := c.free[n-1]
		c.free = c.free[:n-1]
		none := missing[T]()
		for slot := range slots {
			c.row(slot)[col] = none
		}
		return col
	}
	if c.cols == c.stride {
		c.widen(slots)
	}
	c.cols++
	return int32(c.cols - 1)
}

// release makes a column available to add.
func (c *cells[T]) release(col int32) { c.free = ledger.AppendFree(c.free, col, c.stride) }

// refit sets the list of free columns after only.
func (c *cells[T]) refit(free []int32) { c.free = ledger.Fit(free, c.stride) }

// inUse returns the number of columns that are in use.
func (c *cells[T]) inUse() int { return c.cols - len(c.free) }

func (c *cells[T]) widen(slots int) {
	next := cells[T]{stride: c.stride + more(c.stride), cols: c.cols}
	next.blocks = newBlocks[T](slots, next.stride)
	none := missing[T]()
	for slot := range slots {
		row := next.row(slot)
		for i := copy(row, c.row(slot)); i < len(row); i++ {
			row[i] = none
		}
	}
	*c = next
}

// more returns the number of columns that widen adds.
func more(stride int) int { return max(4, stride/8) }

// costOfColumn returns the most that add can cost. A free column costs nothing.
func (c *cells[T]) costOfColumn(slots, size int) ledger.Cost {
	if len(c.free) > 0 || c.cols < c.stride {
		return ledger.Cost{}
	}
	to := cellBytes(slots, c.stride+more(c.stride), size)
	return ledger.Cost{Peak: to, Net: to - cellBytes(slots, c.stride, size)}
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

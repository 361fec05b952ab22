// SPDX-License-Identifier: Apache-2.0

package history

import "math/bits"

// triple is the stored form of a value: mean, maximum and count.
type triple [3]uint32

// absent is a metric without a value.
var absent = triple{missing, missing, missing}

// column is one metric's state of encoding: its last row, and where the bits were that
// differed.
type column struct {
	last   triple
	window [3]window
}

// window is a range of the 32 bits of a value. A width of 0 means none yet.
type window struct{ leading, width uint8 }

// rowState is the state that the encoder and the decoder of rows share: they start from
// the same columns, and each row changes them in the same way.
type rowState struct{ columns []column }

// grow adds columns up to n. New columns are absent before.
func (s *rowState) grow(n int) {
	for len(s.columns) < n {
		s.columns = append(s.columns, column{last: absent})
	}
}

// encode appends a row, with a triple for each column.
//
//	row    = 0: as the last row | 1 metric…
//	metric = 0: as the last row | 1 value value value
//	value  = 0: as the last row | 10 bits within the last window | 11 leading(5) width-1(5) bits
func (s *rowState) encode(w *bitWriter, row []triple) {
	if s.isLast(row) {
		w.write(0, 1)
		return
	}
	w.write(1, 1)
	for i := range s.columns {
		c := &s.columns[i]
		if c.last == row[i] {
			w.write(0, 1)
			continue
		}
		w.write(1, 1)
		for j, v := range row[i] {
			c.window[j].encode(w, c.last[j]^v)
		}
		c.last = row[i]
	}
}

func (s *rowState) isLast(row []triple) bool {
	for i := range s.columns {
		if s.columns[i].last != row[i] {
			return false
		}
	}
	return true
}

// encode appends the bits in which a value differs from the last one.
func (x *window) encode(w *bitWriter, diff uint32) {
	if diff == 0 {
		w.write(0, 1)
		return
	}
	leading, trailing := uint8(bits.LeadingZeros32(diff)), uint8(bits.TrailingZeros32(diff))
	if end := 32 - x.leading - x.width; x.width > 0 && leading >= x.leading && trailing >= end {
		w.write(0b10, 2)
		w.write(diff>>end, uint(x.width))
		return
	}
	x.leading, x.width = leading, 32-leading-trailing
	w.write(0b11, 2)
	w.write(uint32(x.leading), 5)
	w.write(uint32(x.width-1), 5)
	w.write(diff>>trailing, uint(x.width))
}

// decode reads a row into the columns' last. It reports whether the bits were a row.
func (s *rowState) decode(r *bitReader) bool {
	if r.read(1) == 0 {
		return !r.bad
	}
	for i := range s.columns {
		if r.read(1) == 0 {
			continue
		}
		c := &s.columns[i]
		for j := range c.last {
			diff, ok := c.window[j].decode(r)
			if !ok {
				return false
			}
			c.last[j] ^= diff
		}
	}
	return !r.bad
}

// decode reads the bits in which a value differs from the last one.
func (x *window) decode(r *bitReader) (diff uint32, ok bool) {
	if r.read(1) == 0 {
		return 0, !r.bad
	}
	if r.read(1) == 1 {
		leading, width := r.read(5), r.read(5)+1
		if leading+width > 32 {
			return 0, false
		}
		x.leading, x.width = uint8(leading), uint8(width)
	}
	if x.width == 0 {
		return 0, false
	}
	diff = r.read(uint(x.width)) << (32 - x.leading - x.width)
	return diff, !r.bad
}

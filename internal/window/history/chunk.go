// SPDX-License-Identifier: Apache-2.0

package history

import "slices"

// A chunk ends at one of these limits. Memory is given back by chunks, so that a small
// chunk loses few minutes at a time.
const (
	maxChunkBytes = 2 << 10
	maxChunkRows  = 720 // minutes
)

// chunk is a sequence of a workload's rows, oldest first, without pointers inside.
//
//	minute = 0: the minute after the last row | 1 minutes-since(16)
type chunk struct {
	first, last int32 // minutes
	rows        int32
	columns     int32 // metrics of each row: the first ones of the workload's list
	data        []byte
}

// chunkOverhead is the memory of a chunk beside its data.
const chunkOverhead = 48

func (c *chunk) bytes() int64 { return chunkOverhead + int64(cap(c.data)) }

// chunkWriter appends rows to the newest chunk of a workload.
type chunkWriter struct {
	chunk
	state rowState
	free  uint // unused bits of the last byte of data
}

// bytes returns the memory of the writer.
func (w *chunkWriter) bytes() int64 {
	return w.chunk.bytes() + columnBytes*int64(cap(w.state.columns))
}

// columnBytes is the size of a column.
const columnBytes = 20

// fits reports whether a row of a minute with so many metrics can be appended.
func (w *chunkWriter) fits(minute int64, columns int) bool {
	return w.rows > 0 && w.rows < maxChunkRows && len(w.data) < maxChunkBytes &&
		int(w.columns) == columns && minute-int64(w.last) < 1<<16
}

// begin empties the writer for a chunk that starts with a minute.
func (w *chunkWriter) begin(minute int64, columns int) {
	w.chunk = chunk{first: int32(minute), last: int32(minute) - 1, columns: int32(columns), data: w.data[:0]}
	w.state.columns = w.state.columns[:0]
	w.state.grow(columns)
	w.free = 0
}

// append adds a row. fits was true, or begin was called.
func (w *chunkWriter) append(minute int64, row []triple) {
	b := bitWriter{w.data, w.free}
	if gap := minute - int64(w.last); gap == 1 {
		b.write(0, 1)
	} else {
		b.write(1, 1)
		b.write(uint32(gap), 16)
	}
	w.state.encode(&b, row)
	w.data, w.free = b.buf, b.free
	w.last = int32(minute)
	w.rows++
}

// sealed returns the chunk without spare memory.
func (w *chunkWriter) sealed() chunk {
	c := w.chunk
	c.data = append(make([]byte, 0, len(w.data)), w.data...)
	return c
}

// each calls f for each row, oldest first, until f returns false. The row is in s, whose
// memory is reused.
func (c *chunk) each(s *rowState, f func(minute int64, columns []column) bool) bool {
	r, minute := bitReader{buf: c.data}, int64(c.first)-1
	s.columns = slices.Grow(s.columns[:0], int(c.columns))
	s.grow(int(c.columns))
	for range c.rows {
		gap := int64(1)
		if r.read(1) == 1 {
			gap = int64(r.read(16))
		}
		minute += gap
		if !s.decode(&r) || !f(minute, s.columns) {
			return false
		}
	}
	return true
}

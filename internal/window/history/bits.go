// SPDX-License-Identifier: Apache-2.0

package history

// bitWriter appends bits to a slice, highest bit first.
type bitWriter struct {
	buf  []byte
	free uint // unused low bits of the last byte
}

// write appends the low n bits of v, n ≤ 32.
func (w *bitWriter) write(v uint32, n uint) {
	for n > 0 {
		if w.free == 0 {
			w.buf = append(w.buf, 0)
			w.free = 8
		}
		take := min(n, w.free)
		part := byte(v>>(n-take)) & byte(1<<take-1)
		w.free -= take
		w.buf[len(w.buf)-1] |= part << w.free
		n -= take
	}
}

// bitReader reads what a bitWriter wrote.
type bitReader struct {
	buf []byte
	at  uint // the next bit
	bad bool // a read went beyond the end
}

// read returns the next n bits, n ≤ 32. Beyond the end it returns 0 and sets bad.
func (r *bitReader) read(n uint) (v uint32) {
	if r.at+n > uint(len(r.buf))*8 {
		r.bad = true
		return 0
	}
	for n > 0 {
		used := r.at % 8
		take := min(n, 8-used)
		part := uint32(r.buf[r.at/8]>>(8-used-take)) & (1<<take - 1)
		v = v<<take | part
		r.at += take
		n -= take
	}
	return v
}

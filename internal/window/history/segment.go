// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A segment is a file that only grows: a header, and frames.
//
//	header = "gpupilot minutes" version(2) first-minute(4) checksum(4)
//	frame  = length(4) checksum(4) entry…
//	entry  = 1 namespace kind name         a workload, numbered from 0
//	       | 2 workload metric             a metric of a workload, numbered from 0; see Metric
//	       | 3 workload minutes-since size bits   a row, see rowState.encode
//
// Fixed numbers are big-endian, others are uvarints; a text is its length and its bytes.
// minutes-since counts from the workload's last row in the segment, or from the first
// minute. A checksum is the CRC-32C of the previous checksum, the length and the entries,
// so that frames are valid in their own order only.
const (
	magic          = "gpupilot minutes"
	segmentVersion = 2
	headerSize     = len(magic) + 2 + 4 + 4
	frameHeader    = 8

	// maxFrame bounds the memory of reading a frame.
	maxFrame = 1 << 20
	// maxSegmentNames bounds the memory of a segment's names.
	maxSegmentNames = 64 << 20
)

const (
	entryWorkload = 1
	entryMetric   = 2
	entryRow      = 3
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The errors of reading a segment.
var (
	errNoHeader = errors.New("the header is damaged")
	errDamaged  = errors.New("the frame is damaged")
)

// segmentWriter encodes rows as frames.
type segmentWriter struct {
	first     int64
	checksum  uint32
	workloads map[Workload]*writtenWorkload
	frame     []byte // begins with room for the frame's header
	names     int    // memory of the workloads and metrics, in bytes
	row       []triple
}

// writtenWorkload is a workload's state in a segment that is written.
type writtenWorkload struct {
	number int
	index  map[Metric]int
	last   int64
	state  rowState
}

// newSegment starts a segment, and returns its header.
func newSegment(first int64) (*segmentWriter, []byte) {
	h := make([]byte, 0, headerSize)
	h = append(h, magic...)
	h = binary.BigEndian.AppendUint16(h, segmentVersion)
	h = binary.BigEndian.AppendUint32(h, uint32(first))
	sum := crc32.Checksum(h, castagnoli)
	w := &segmentWriter{first: first, checksum: sum, workloads: map[Workload]*writtenWorkload{}}
	w.frame = make([]byte, frameHeader, 4096)
	return w, binary.BigEndian.AppendUint32(h, sum)
}

// add encodes a row into the current frame.
func (w *segmentWriter) add(wl Workload, minute int64, values []Value) {
	x := w.workloads[wl]
	if x == nil {
		x = &writtenWorkload{number: len(w.workloads), index: map[Metric]int{}, last: w.first}
		w.workloads[wl] = x
		w.names += entryOverhead + len(wl.Namespace) + len(wl.Kind) + len(wl.Name)
		w.frame = append(w.frame, entryWorkload)
		w.text(wl.Namespace)
		w.text(wl.Kind)
		w.text(wl.Name)
	}
	if !w.encodeRow(x, values) || minute < x.last {
		return
	}
	w.frame = append(w.frame, entryRow)
	w.number(x.number)
	w.number(int(minute - x.last))
	var b bitWriter
	x.state.encode(&b, w.row)
	w.number(len(b.buf))
	w.frame = append(w.frame, b.buf...)
	x.last = minute
}

// encodeRow sets w.row to the stored form of the values, and adds new metrics to the
// frame. It reports whether there is a value.
func (w *segmentWriter) encodeRow(x *writtenWorkload, values []Value) bool {
	for i := range values {
		v := &values[i]
		if _, ok := x.index[v.Metric]; ok || len(x.index) >= MaxMetrics || !v.Metric.valid() {
			continue
		}
		x.index[v.Metric] = len(x.index)
		w.names += metricOverhead + columnBytes + len(v.Metric)
		w.frame = append(w.frame, entryMetric)
		w.number(x.number)
		w.text(string(v.Metric))
	}
	x.state.grow(len(x.index))
	w.row = w.row[:0]
	for range x.index {
		w.row = append(w.row, absent)
	}
	found := false
	for i := range values {
		v := &values[i]
		at, ok := x.index[v.Metric]
		if mean := narrow(v.Mean); ok && mean != missing {
			w.row[at], found = triple{mean, narrow(v.Max), narrow(v.Count)}, true
		}
	}
	return found
}

func (w *segmentWriter) number(n int) { w.frame = binary.AppendUvarint(w.frame, uint64(n)) }

func (w *segmentWriter) text(s string) {
	w.number(len(s))
	w.frame = append(w.frame, s...)
}

// size returns the bytes of the current frame.
func (w *segmentWriter) size() int { return len(w.frame) }

// forget frees the state of a workload that gets no further row.
func (w *segmentWriter) forget(wl Workload) {
	if x := w.workloads[wl]; x != nil {
		x.state, x.index = rowState{}, nil
	}
}

// finish returns the current frame, and starts the next one. The bytes are valid until
// then; they are empty if nothing was added.
func (w *segmentWriter) finish() []byte {
	f := w.frame
	w.frame = w.frame[:frameHeader]
	if len(f) == frameHeader {
		return nil
	}
	binary.BigEndian.PutUint32(f, uint32(len(f)-frameHeader))
	w.checksum = frameSum(w.checksum, f[:4], f[frameHeader:])
	binary.BigEndian.PutUint32(f[4:], w.checksum)
	return f
}

// frameSum returns the checksum of a frame after another one.
func frameSum(before uint32, length, entries []byte) uint32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], before)
	sum := crc32.Checksum(b[:], castagnoli)
	sum = crc32.Update(sum, castagnoli, length)
	return crc32.Update(sum, castagnoli, entries)
}

// segmentReader decodes a segment.
type segmentReader struct {
	in        io.Reader
	first     int64
	checksum  uint32
	workloads []*readWorkload
	metrics   map[Metric]Metric // so that workloads share the texts
	names     int               // bytes
	frame     bytes.Buffer
	values    []Value
	good      int64 // bytes up to the end of the last good frame
}

// readWorkload is a workload's state in a segment that is read.
type readWorkload struct {
	key     Workload
	metrics []Metric
	last    int64
	state   rowState
}

// readSegment calls f for each row, until the end of the segment or the first damaged
// frame, which is an error. Rows of a frame with a wrong checksum are not delivered. The values are
// only valid until f returns. good is the size of the undamaged part, in bytes.
func readSegment(in io.Reader, f func(w Workload, minute int64, values []Value)) (good int64, err error) {
	r := &segmentReader{in: in, metrics: map[Metric]Metric{}}
	if err := r.header(); err != nil {
		return 0, err
	}
	r.good = int64(headerSize)
	for n := 0; ; n++ {
		entries, err := r.next()
		if errors.Is(err, io.EOF) {
			return r.good, nil
		}
		if err == nil {
			err = r.entries(entries, f)
		}
		if err != nil {
			return r.good, fmt.Errorf("frame %d at byte %d: %w", n+1, r.good, err)
		}
		r.good += frameHeader + int64(len(entries))
	}
}

func (r *segmentReader) header() error {
	var h [headerSize]byte
	if _, err := io.ReadFull(r.in, h[:]); err != nil {
		return fmt.Errorf("%w: %w", errNoHeader, err)
	}
	sum := crc32.Checksum(h[:headerSize-4], castagnoli)
	if string(h[:len(magic)]) != magic || binary.BigEndian.Uint32(h[headerSize-4:]) != sum {
		return errNoHeader
	}
	if v := binary.BigEndian.Uint16(h[len(magic):]); v != segmentVersion {
		return fmt.Errorf("the segment has version %d, want %d", v, segmentVersion)
	}
	r.first, r.checksum = int64(binary.BigEndian.Uint32(h[len(magic)+2:])), sum
	return nil
}

// next reads a frame and checks its checksum. The error is io.EOF at the end.
func (r *segmentReader) next() ([]byte, error) {
	var h [frameHeader]byte
	if n, err := io.ReadFull(r.in, h[:]); err != nil {
		if n == 0 {
			return nil, err
		}
		return nil, fmt.Errorf("%w: it ends after %d bytes", errDamaged, n)
	}
	length := binary.BigEndian.Uint32(h[:4])
	if length == 0 || length > maxFrame {
		return nil, fmt.Errorf("%w: its length is %d", errDamaged, length)
	}
	r.frame.Reset()
	if n, err := io.CopyN(&r.frame, r.in, int64(length)); err != nil {
		return nil, fmt.Errorf("%w: it ends after %d of %d bytes", errDamaged, n, length)
	}
	sum := frameSum(r.checksum, h[:4], r.frame.Bytes())
	if sum != binary.BigEndian.Uint32(h[4:]) {
		return nil, fmt.Errorf("%w: its checksum does not match", errDamaged)
	}
	r.checksum = sum
	return r.frame.Bytes(), nil
}

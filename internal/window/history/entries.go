// SPDX-License-Identifier: Apache-2.0

package history

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// cursor reads the numbers and texts of a frame.
type cursor struct {
	rest []byte
	bad  bool
}

// number reads a uvarint below limit.
func (c *cursor) number(limit int) int {
	v, n := binary.Uvarint(c.rest)
	if n <= 0 || v >= uint64(limit) {
		c.bad, c.rest = true, nil
		return 0
	}
	c.rest = c.rest[n:]
	return int(v)
}

// bytes reads so many bytes.
func (c *cursor) bytes(n int) []byte {
	if n > len(c.rest) {
		c.bad, c.rest = true, nil
		return nil
	}
	b := c.rest[:n]
	c.rest = c.rest[n:]
	return b
}

// text reads a text of 1 to most bytes.
func (c *cursor) text(most int) string {
	b := c.bytes(c.number(most + 1))
	if len(b) == 0 || !utf8.Valid(b) {
		c.bad = true
	}
	return string(b)
}

// entries decodes the entries of a frame, whose checksum was right. An error means that a
// program wrote what this one does not understand.
func (r *segmentReader) entries(frame []byte, f func(Workload, int64, []Value)) error {
	c := cursor{rest: frame}
	for len(c.rest) > 0 {
		var ok bool
		kind := c.number(256)
		switch kind {
		case entryWorkload:
			ok = r.workload(&c)
		case entryMetric:
			ok = r.metric(&c)
		case entryRow:
			ok = r.row(&c, f)
		}
		if !ok || c.bad {
			return fmt.Errorf("an entry of the kind %d cannot be read", kind)
		}
	}
	return nil
}

func (r *segmentReader) workload(c *cursor) bool {
	w := Workload{Namespace: c.text(MaxName), Kind: c.text(MaxName), Name: c.text(MaxName)}
	if r.names += entryOverhead + len(w.Namespace) + len(w.Kind) + len(w.Name); c.bad || r.names > maxSegmentNames {
		return false
	}
	r.workloads = append(r.workloads, &readWorkload{key: w, last: r.first})
	return true
}

func (r *segmentReader) metric(c *cursor) bool {
	at := c.number(len(r.workloads))
	m := Metric(c.text(MaxMetric))
	if r.names += metricOverhead + columnBytes + len(m); c.bad || r.names > maxSegmentNames || len(r.workloads[at].metrics) >= MaxMetrics {
		return false
	}
	w := r.workloads[at]
	w.metrics = append(w.metrics, shared(r.metrics, m))
	w.state.grow(len(w.metrics))
	return true
}

// shared returns the text of an equal metric that was read before.
func shared(known map[Metric]Metric, m Metric) Metric {
	if k, ok := known[m]; ok {
		return k
	}
	known[m] = m
	return m
}

func (r *segmentReader) row(c *cursor, f func(Workload, int64, []Value)) bool {
	at := c.number(len(r.workloads))
	gap := c.number(maxMinute)
	bits := bitReader{buf: c.bytes(c.number(maxFrame))}
	if c.bad || len(bits.buf) == 0 {
		return false
	}
	w := r.workloads[at]
	if w.last += int64(gap); w.last > maxMinute || !w.state.decode(&bits) {
		return false
	}
	if r.values = appendValues(r.values[:0], w.state.columns, w.metrics, nil); len(r.values) > 0 {
		f(w.key, w.last, r.values)
	}
	return true
}

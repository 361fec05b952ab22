// SPDX-License-Identifier: Apache-2.0

package page

import (
	"hash/maphash"

	"github.com/gpupilot/gpupilot/internal/base/promtext"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// labelMemo caches the facts from labels while one page is read. The lines of a
// device have the same labels, byte for byte: they are parsed once and not for each
// field.
type labelMemo struct {
	places map[uint64]int32 // indexes of facts, by the hash of the labels' text
	facts  []labelFacts

	name  string // the last resolved metric; the lines of a metric are consecutive
	field gpu.Index
	ref   gpu.Ref
	found bool
}

// labelFacts are the facts that gpus derives from a line's labels.
type labelFacts struct {
	known, copy bool
	slot, owner int32
}

// line is a sample line, and what is remembered of its labels.
type line struct {
	promtext.Line
	facts *labelFacts // nil: nothing
}

// maxMemo is the limit of cached label texts: 1,024 devices with four texts each.
// Beyond, labels are parsed line by line.
const maxMemo = 1 << 12

// begin empties the cache for a new page.
func (m *labelMemo) begin() {
	if m.places == nil || len(m.facts) > maxMemo/8 { // a map never shrinks
		m.places, m.facts = map[uint64]int32{}, nil
	}
	clear(m.places)
	m.facts, m.name, m.found = m.facts[:0], "", false
}

// parse parses a line whose identity probably ends at end. Labels that an earlier
// line of the page has are not parsed again until get needs them.
func (m *labelMemo) parse(l *line, text []byte, end int, seed maphash.Seed) error {
	n := promtext.NameEnd(text, 0)
	if n == 0 || n >= end || text[n] != '{' {
		l.facts = nil
		return l.Parse(text)
	}
	hash := maphash.Bytes(seed, text[n:end])
	if place, ok := m.places[hash]; ok {
		l.facts = &m.facts[place]
		return l.ParseKnown(text, n, end)
	}
	l.facts = nil
	if err := l.Parse(text); err != nil || l.End != end || len(m.facts) >= maxMemo {
		return err
	}
	m.places[hash] = int32(len(m.facts))
	m.facts = append(m.facts, labelFacts{})
	l.facts = &m.facts[len(m.facts)-1]
	return nil
}

// resolve returns the field of a metric.
func (m *labelMemo) resolve(name []byte) (gpu.Ref, gpu.Index, bool) {
	if m.name == "" || m.name != string(name) {
		m.name = string(name)
		if m.ref, m.found = names.Resolve(m.name); m.found {
			m.field, m.found = gpu.IndexOf(m.ref.Field)
		}
	}
	return m.ref, m.field, m.found
}

// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"hash/maphash"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// labelMemo remembers, while one page is read, what its lines' labels say. The
// lines of a device have the same labels, byte for byte: they are taken apart
// once, and not again for each of its fields.
type labelMemo struct {
	places map[uint64]int32 // of the facts, by the hash of the labels' text
	facts  []labelFacts

	name  string // the metric that was resolved last: its lines stand together
	field gpu.Index
	ref   gpu.Ref
	found bool
}

// labelFacts are what gpus knows of a line by its labels.
type labelFacts struct {
	known, copy bool
	slot, owner int32
}

// maxMemo bounds the texts of labels that are remembered: 1,024 devices with four
// texts each. Beyond, labels are taken apart line by line.
const maxMemo = 1 << 12

// begin forgets the last page.
func (m *labelMemo) begin() {
	if m.places == nil || len(m.facts) > maxMemo/8 { // a map that was large stays large
		m.places, m.facts = map[uint64]int32{}, nil
	}
	clear(m.places)
	m.facts, m.name, m.found = m.facts[:0], "", false
}

// parse takes a line apart, of which the identity seems to end at end. Where its
// labels are on the page already they are not looked at before they are asked for.
func (m *labelMemo) parse(l *line, text []byte, end int, seed maphash.Seed) error {
	n := nameEnd(text, 0)
	if n == 0 || n >= end || text[n] != '{' {
		l.facts = nil
		return l.parse(text)
	}
	hash := maphash.Bytes(seed, text[n:end])
	if place, ok := m.places[hash]; ok {
		l.facts = &m.facts[place]
		return l.parseKnown(text, n, end)
	}
	l.facts = nil
	if err := l.parse(text); err != nil || l.end != end || len(m.facts) >= maxMemo {
		return err
	}
	m.places[hash] = int32(len(m.facts))
	m.facts = append(m.facts, labelFacts{})
	l.facts = &m.facts[len(m.facts)-1]
	return nil
}

// resolve finds the field of a metric.
func (m *labelMemo) resolve(name []byte) (gpu.Ref, gpu.Index, bool) {
	if m.name == "" || m.name != string(name) {
		m.name = string(name)
		if m.ref, m.found = names.Resolve(m.name); m.found {
			m.field, m.found = gpu.IndexOf(m.ref.Field)
		}
	}
	return m.ref, m.field, m.found
}

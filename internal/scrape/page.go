// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"unicode/utf8"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/series"
)

// use is what a line's value is for.
type use uint8

const (
	ignored     use = iota
	value           // of a series of a device
	part            // of the sum that is a pod's metric
	collected       // when an agent collected
	interval        // how often it does
	took            // how long it took
	lastSuccess     // when it last read a device
	allocation      // says who holds a device
	share           // of a device's field: a container's
)

// entry is what is known of a line by its identity, that is its name and
// labels, which are the same at the next scrape more often than not.
type entry struct {
	hash  uint64 // of the identity's text
	scale float64
	ref   series.Ref
	slot  int32 // the device, or the pod's metric
	owner int32 // of the device, by place in its identifier's list; 0: none
	use   use
	copy  bool      // one of the copies of a shared device's series, one for each sharer
	field gpu.Index // of a value or a share: whose range holds
	beat  evidence  // what its value tells of the age of its device's values
	seen  uint32    // a digest of its value at the last page; 0: it was not there
}

// The bounds of one page, so that no target can take the others' memory.
const (
	maxEntries = 1 << 14 // lines remembered; the others are read the long way each time
	maxSeries  = 1 << 13 // 8 GPUs × 7 MIG instances × 100 fields, and some
	maxSteps   = 1 << 20 // entries passed over in search of lines; about 1 ms
)

// page reads one target's answers. It remembers the lines of the last one in
// their order: at the next, each line's identity is only hashed and compared
// with the one that is expected there.
type page struct {
	seed    maphash.Seed
	entries []entry // of the last page, in its order
	next    []entry // of this page, where it differs
	line    line
	who     identifier

	points  []point
	meta    meta
	lines   int // sample lines
	bad     int
	badLine error  // the first bad line: its number and what is wrong with it
	badText string // its beginning, for the log at its debug level only
	changed bool   // not the last page's identities
	outside outside
	series  int
	steps   int
}

// identifier knows what a target's lines are for.
type identifier interface {
	// identify is called with each line that is seen for the first time.
	identify(l *line) entry
	// success is told when an agent last read a device.
	success(slot int32, seconds float64)
	// beat is told the value of a line that is evidence, and whether it is not the
	// last page's.
	beat(slot int32, e evidence, v float64, moved bool)
}

// point is a value on its way into a batch.
type point struct {
	ref   series.Ref
	slot  int32
	value float64
	stamp int64 // ms, the line's own; 0: none
	share bool
}

// meta is what an agent says of its collection, in seconds; 0: it did not say.
type meta struct{ collected, interval, took float64 }

func newPage(who identifier) *page {
	return &page{seed: maphash.MakeSeed(), who: who}
}

// forget makes the next page be read the long way.
func (p *page) forget() { p.entries = p.entries[:0] }

// read takes a page apart into p.points and p.meta. An error means that the
// page is none; single bad lines are in p.bad.
func (p *page) read(b []byte) error {
	p.points, p.next, p.meta, p.outside = p.points[:0], p.next[:0], meta{}, p.outside[:0]
	p.lines, p.bad, p.badLine, p.changed, p.series, p.steps = 0, 0, nil, false, 0, 0
	at, number := 0, 0
	for len(b) > 0 {
		number++
		text := b
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			text, b = b[:i], b[i+1:]
		} else {
			b = nil
		}
		if n := len(text); n > 0 && text[n-1] == '\r' {
			text = text[:n-1]
		}
		if len(text) == 0 || text[0] == '#' {
			if string(text) == "# EOF" {
				break
			}
			continue
		}
		e, v, stamp, err := p.sample(text, &at)
		if err != nil {
			if p.bad++; p.badLine == nil {
				p.badLine, p.badText = fmt.Errorf("line %d: %w", number, err), excerpt(text)
			}
			continue
		}
		p.lines++
		p.take(e, v, stamp)
	}
	if at != len(p.entries) {
		p.differ(at)
	}
	if p.changed {
		p.entries, p.next = p.next, p.entries
	}
	if p.bad > p.lines {
		p.forget()
		return fmt.Errorf("not a metrics page, %d of %d lines are bad: %w", p.bad, p.bad+p.lines, p.badLine)
	}
	return nil
}

// sample reads one line; at is the place of the entry that is expected.
func (p *page) sample(text []byte, at *int) (entry, float64, int64, error) {
	end := identityEnd(text)
	if end > 0 {
		if e := p.expect(maphash.Bytes(p.seed, text[:end]), at); e != nil {
			v, stamp, err := parseTail(text[end:])
			if err == nil && e.beat != noEvidence {
				p.beat(e, v)
			}
			return *e, v, stamp, err
		}
	}
	if err := p.line.parse(text); err != nil {
		return entry{}, 0, 0, err
	}
	p.differ(*at)
	e := p.who.identify(&p.line)
	if e.beat != noEvidence {
		p.beat(&e, p.line.value)
	}
	if e.use == value || e.use == share {
		if p.series++; p.series > maxSeries {
			e = entry{}
		}
	}
	if end == p.line.end && len(p.next) < maxEntries {
		e.hash = maphash.Bytes(p.seed, text[:end])
		p.next = append(p.next, e)
	}
	return e, p.line.value, p.line.stamp, nil
}

// expect finds the entry of an identity at its place or behind it: lines may
// have left the page. The entry is good until the next line.
func (p *page) expect(hash uint64, at *int) *entry {
	for i := *at; i < len(p.entries); i++ {
		if p.entries[i].hash != hash {
			if p.steps++; p.steps > maxSteps {
				return nil
			}
			continue
		}
		if i != *at {
			p.differ(*at)
		}
		*at = i + 1
		e := &p.entries[i]
		if p.changed {
			p.next = append(p.next, *e)
			e = &p.next[len(p.next)-1]
		}
		if e.use == value || e.use == share {
			p.series++
		}
		return e
	}
	return nil
}

// beat tells of a line that is evidence.
func (p *page) beat(e *entry, v float64) {
	if v != v {
		return
	}
	now := digest(v)
	p.who.beat(e.slot, e.beat, v, e.seen != 0 && e.seen != now)
	e.seen = now
}

// differ begins a list of this page's own, with the first n entries of the last.
func (p *page) differ(n int) {
	if !p.changed {
		p.changed = true
		p.next = append(p.next[:0], p.entries[:n]...)
	}
}

// take puts a line's value where it belongs.
func (p *page) take(e entry, v float64, stamp int64) {
	switch e.use {
	case value, share:
		p.points = append(p.points, point{e.ref, e.slot, p.outside.limit(&e, v), stamp, e.use == share})
	case part:
		p.points = append(p.points, point{ref: e.ref, slot: e.slot, value: v, stamp: stamp})
	case collected:
		p.meta.collected = v
	case interval:
		p.meta.interval = v
	case took:
		p.meta.took = v
	case lastSuccess:
		p.who.success(e.slot, v)
	}
}

// identityEnd guesses where a line's identity ends: behind its last brace, or
// at its first blank where it has none. The long way makes sure of it.
func identityEnd(b []byte) int {
	if i := bytes.LastIndexByte(b, '}'); i >= 0 {
		return i + 1
	}
	if bytes.IndexByte(b, '{') >= 0 {
		return 0
	}
	return wordEnd(b, 0)
}

// excerpt is the beginning of a bad line.
func excerpt(b []byte) string {
	const most = 80
	if len(b) <= most {
		return string(b)
	}
	n := most
	for n > most-utf8.UTFMax && !utf8.RuneStart(b[n]) {
		n--
	}
	return string(b[:n]) + "…"
}

// newestLine is the newest time that a point's line carries, in ms since 1970;
// 0 where none does.
func (p *page) newestLine() int64 {
	newest := int64(0)
	for i := range p.points {
		newest = max(newest, p.points[i].stamp)
	}
	return newest
}

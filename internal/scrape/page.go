// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"unicode/utf8"
	"unsafe"

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
	maxPoints  = 1 << 14 // values of one page
	maxLines   = 1 << 17 // with comments; 16 times what a node with 16 GPUs in 7 instances each has
	maxSteps   = 1 << 20 // entries passed over in search of lines; about 1 ms
	// maxLine is the longest line in bytes, and the size of a read buffer. A line
	// of dcgm-exporter with the labels of its pod has 1 to 4 KiB.
	maxLine = 32 << 10
)

var (
	errLong   = fmt.Errorf("line is longer than %d bytes", maxLine)
	errLines  = fmt.Errorf("exposition has more than %d lines", maxLines)
	errPoints = fmt.Errorf("exposition has more than %d values of the metrics that autoscalers read", maxPoints)
)

// page reads one target's answers. It remembers the lines of the last one in
// their order: at the next, each line's identity is only hashed and compared
// with the one that is expected there.
type page struct {
	seed    maphash.Seed
	entries []entry // of the last page, in its order
	next    []entry // of this page, where it differs; a buffer's
	line    line
	found   entry // of a line that was not on the last page
	memo    *labelMemo
	who     identifier
	most    int // entries that may be remembered

	at     int  // the place of the entry that is expected
	number int  // of the line
	long   bool // the line that is being read is too long
	eof    bool // the page said where it ends

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
	over    bool // more than maxPoints
	bytes   int64
}

// identifier knows what a target's lines are for.
type identifier interface {
	// identify is called with each line that is seen for the first time.
	identify(l *line, m *labelMemo) entry
	// success is told when an agent last read a device.
	success(slot int32, seconds float64)
	// beat is told the value of a line that is evidence, and whether it is not the
	// last page's.
	beat(slot int32, e evidence, v float64, moved bool)
	// size is what it remembers, in bytes.
	size() int64
}

// point is a value on its way into a batch.
type point struct {
	ref   series.Ref
	slot  int32
	value float64
	stamp int64 // ms, the line's own; 0: none
	share bool
	copy  bool // as in entry
}

// meta is what an agent says of its collection, in seconds; 0: it did not say.
type meta struct{ collected, interval, took float64 }

func newPage(who identifier) *page {
	return &page{seed: maphash.MakeSeed(), who: who, most: maxEntries}
}

// forget makes the next page be read the long way.
func (p *page) forget() { p.entries = p.entries[:0] }

// shrink gives up the memory of what is remembered, and lets half as much be
// remembered from now on.
func (p *page) shrink() {
	p.entries, p.next, p.most = nil, nil, p.most/2
}

// size is what the page remembers, in bytes: not what is a buffer's.
func (p *page) size() int64 {
	return int64(cap(p.entries))*int64(unsafe.Sizeof(entry{})) + p.who.size()
}

// read takes a page apart into p.points and p.meta. An error means that the
// page is none; single bad lines are in p.bad.
func (p *page) read(b []byte) error {
	p.begin()
	p.feed(b)
	return p.end()
}

// begin starts a page, which feed takes in pieces until end.
func (p *page) begin() {
	p.points, p.next, p.meta, p.outside = p.points[:0], p.next[:0], meta{}, p.outside[:0]
	if p.memo == nil {
		p.memo = new(labelMemo)
	}
	p.memo.begin()
	p.lines, p.bad, p.badLine, p.changed, p.series, p.steps = 0, 0, nil, false, 0, 0
	p.at, p.number, p.long, p.eof, p.over = 0, 0, false, false, false
}

// feed takes the lines of the last piece of a page.
func (p *page) feed(b []byte) {
	if rest := b[p.feedLines(b):]; len(rest) > 0 {
		p.text(rest)
	}
}

// feedLines takes the whole lines of a piece, and says where they end.
func (p *page) feedLines(b []byte) (n int) {
	for {
		i := bytes.IndexByte(b[n:], '\n')
		if i < 0 {
			return n
		}
		p.text(b[n : n+i])
		n += i + 1
	}
}

// skip says that what has been read of a line is too long to be kept.
func (p *page) skip() { p.long = true }

// text takes a line.
func (p *page) text(text []byte) {
	p.number++
	if n := len(text); n > 0 && text[n-1] == '\r' {
		text = text[:n-1]
	}
	switch {
	case p.long || len(text) > maxLine:
		p.long = false
		p.refuse(text, errLong)
		return
	case p.eof || len(text) == 0:
		return
	case text[0] == '#':
		p.eof = string(text) == "# EOF"
		return
	}
	e, v, stamp, err := p.sample(text, &p.at)
	if err != nil {
		p.refuse(text, err)
		return
	}
	p.lines++
	p.take(e, v, stamp)
}

// refuse counts a bad line.
func (p *page) refuse(text []byte, err error) {
	if p.bad++; p.badLine == nil {
		p.badLine, p.badText = fmt.Errorf("line %d: %w", p.number, err), excerpt(text)
	}
}

// end is called when all of a page was fed.
func (p *page) end() error {
	p.line.release()
	if p.at != len(p.entries) {
		p.differ(p.at)
	}
	if p.changed {
		if n := len(p.next); cap(p.entries) < n || cap(p.entries) > n+n/8 {
			p.entries = make([]entry, 0, n)
		}
		p.entries = append(p.entries[:0], p.next...)
	}
	if err := p.tooMuch(); err != nil {
		p.forget()
		return err
	}
	if p.bad > p.lines {
		p.forget()
		return fmt.Errorf("not a metrics page, %d of %d lines are bad: %w", p.bad, p.bad+p.lines, p.badLine)
	}
	return nil
}

// tooMuch says whether the page is beyond the bounds of one.
func (p *page) tooMuch() error {
	switch {
	case p.number > maxLines:
		return errLines
	case p.over:
		return errPoints
	}
	return nil
}

// sample reads one line; at is the place of the entry that is expected. The entry
// is good until the next line.
func (p *page) sample(text []byte, at *int) (*entry, float64, int64, error) {
	end := identityEnd(text)
	if end > 0 {
		if e := p.expect(maphash.Bytes(p.seed, text[:end]), at); e != nil {
			v, stamp, err := parseTail(text[end:])
			if err == nil && e.beat != noEvidence {
				p.beat(e, v)
			}
			return e, v, stamp, err
		}
	}
	if err := p.memo.parse(&p.line, text, end, p.seed); err != nil {
		return nil, 0, 0, err
	}
	p.differ(*at)
	e := &p.found
	*e = p.who.identify(&p.line, p.memo)
	if e.beat != noEvidence {
		p.beat(e, p.line.value)
	}
	if e.use == value || e.use == share {
		if p.series++; p.series > maxSeries {
			*e = entry{}
		}
	}
	if end == p.line.end && len(p.next) < p.most {
		e.hash = maphash.Bytes(p.seed, text[:end])
		p.next = append(p.next, *e)
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
func (p *page) take(e *entry, v float64, stamp int64) {
	switch e.use {
	case value, part, share:
		if len(p.points) >= maxPoints {
			p.over = true
			return
		}
		x := point{e.ref, e.slot, v, stamp, e.use == share, e.copy}
		if e.use != part {
			x.value = p.outside.limit(e, v)
		}
		p.points = append(p.points, x)
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

// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"io"
	"math"
	"time"
	"unsafe"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/base/promtext"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// use is the purpose of a line's value.
type use uint8

const (
	ignored     use = iota
	value           // a device's field
	part            // an addend of a pod's metric
	collected       // the time of an agent's collection
	interval        // the agent's interval
	took            // the duration of the collection
	lastSuccess     // the last successful read of a device
	allocation      // an owner of a device
	share           // a container's share of a device's field
)

// entry is what is known of a line from its identity: the name and the labels. Most
// lines have the same identity at the next scrape.
type entry struct {
	hash     uint64 // of the identity's text
	scale    float64
	ref      series.Ref
	slot     int32 // the index of the device, or of the list of cells
	owner    int32 // the index in gpus.owners; 0: none
	use      use
	copy     bool       // a sharer's copy of a shared device's series
	field    gpu.Index  // of a value or a share, for its range
	evidence evidence   // how well the value's changes show that the device's values are new
	seen     uint32     // the digest of the value on the last page; 0: none
	label    int32      // the index of the label set in labeller.sets; 0: none
	own      series.Ref // the line's own series; zero: none
}

// The limits of one page. They keep a target from taking the memory of the others.
const (
	maxEntries = 1 << 14 // remembered lines; others are parsed at each scrape
	maxSeries  = 1 << 13 // 8 GPUs × 7 MIG instances × 100 fields is 5,600
	maxPoints  = 1 << 14 // values of one page
	maxLines   = 1 << 17 // with comments; 16 times those of a node with 16 GPUs in 7 instances each
	maxSteps   = 1 << 20 // entries skipped in the search for lines; about 1 ms
	// MaxLine is the longest line in bytes, and the size of a read buffer. A line
	// of dcgm-exporter with its pod's labels has 1 to 4 KiB.
	MaxLine = 32 << 10
)

var errLong = fmt.Errorf("line is longer than %d bytes", MaxLine)

// TooLargeError says which limit of a page is exceeded.
type TooLargeError string

// Error implements error.
func (e TooLargeError) Error() string { return string(e) }

var (
	errLines  = TooLargeError(fmt.Sprintf("exposition has more than %d lines", maxLines))
	errPoints = TooLargeError(fmt.Sprintf("exposition has more than %d values of the metrics that autoscalers read", maxPoints))
)

// Reader reads one target's pages. It remembers the lines of the last page in their
// order. On the next page, it only hashes a line's identity and compares the hash with
// the expected one.
type Reader struct {
	seed    maphash.Seed
	entries []entry // of the last page, in its order
	next    []entry // of this page, if it differs; the memory is the buffer's
	line    line
	found   entry // the current line's, if it was not on the last page
	memo    *labelMemo
	who     identifier
	most    int                  // the limit of remembered entries
	learn   func(comment []byte) // takes the comments of a page without an earlier one; nil: none does

	at     int  // the index of the expected entry
	number int  // of the line
	long   bool // the current line is too long
	eof    bool // the line # EOF was read

	points []point
	own    []series.Point // of the lines with a series of their own
	series int
	steps  int
	over   bool // more than maxPoints

	Facts // of the page that was read

	gpus   *gpus       // who, of an exporter
	pods   *podMetrics // who, of a pod
	labels *labeller
}

// Facts are what a page says about itself, and what was wrong with it.
type Facts struct {
	Meta       Meta
	Changed    bool // the identities of the lines differ from the last page's
	Lines      int  // sample lines
	Bytes      int64
	Bad        int    // malformed lines
	BadLine    error  // the first of them: its number and what is wrong with it
	BadText    string // its beginning, for the log's debug level only
	OutOfRange OutOfRange
}

// identifier determines the purpose of a target's lines.
type identifier interface {
	// identify returns the entry of a line that was not on the last page.
	identify(l *line, m *labelMemo) entry
	// success records the time of an agent's last read of a device.
	success(slot int32, seconds float64)
	// observe records the value of a line that is evidence, in its field's unit. moved
	// reports whether it differs from the last page's.
	observe(slot int32, e evidence, v float64, moved bool)
	// size returns the bytes that are remembered.
	size() int64
}

// fillOwn adds the values of the lines with a series of their own to a batch.
func (p *Reader) fillOwn(b *series.Batch) { b.Points = append(b.Points, p.own...) }

// point is a value for the batch.
type point struct {
	ref   series.Ref
	slot  int32
	value float64
	stamp int64 // ms, the line's own; 0: none
	share bool
	copy  bool // as in entry
}

// Meta is the collection's metadata from an agent's page, in seconds; 0: not there.
type Meta struct{ Collected, Interval, Took float64 }

func newReader(who identifier) *Reader {
	return &Reader{seed: maphash.MakeSeed(), who: who, most: maxEntries}
}

// forget drops the entries: each line of the next page is parsed.
func (p *Reader) forget() { p.entries = p.entries[:0] }

// Size returns the bytes that are remembered, without those of the buffer.
func (p *Reader) Size() int64 {
	return int64(cap(p.entries))*int64(unsafe.Sizeof(entry{})) + p.who.size()
}

// Read reads a whole page.
func (p *Reader) Read(b []byte) error {
	p.begin()
	p.feed(b)
	return p.End()
}

// ReadBody reads the body of a response of at most most bytes as it arrives. It holds no
// more of it than the buffer, which has MaxLine bytes. End finishes the page.
func (p *Reader) ReadBody(body io.Reader, buffer []byte, most int64) error {
	p.begin()
	held, total := 0, int64(0) // bytes of the incomplete line, and of the body
	defer func() { p.Bytes = total }()
	for {
		n, err := body.Read(buffer[held:])
		held += n
		if total += int64(n); total > most {
			return TooLargeError(fmt.Sprintf("response is longer than the limit of %d bytes", most))
		}
		used := p.feedLines(buffer[:held])
		held = copy(buffer, buffer[used:held])
		if held == len(buffer) {
			p.skip()
			held = 0
		}
		if err := p.tooMuch(); err != nil {
			return err
		}
		switch {
		case err == io.EOF:
			p.feed(buffer[:held])
			return nil
		case err != nil:
			return err
		}
	}
}

// begin starts a page. feedLines and feed then add its text, and End finishes it.
func (p *Reader) begin() {
	p.points, p.own, p.next, p.Meta, p.OutOfRange = p.points[:0], p.own[:0], p.next[:0], Meta{}, p.OutOfRange[:0]
	if p.memo == nil {
		p.memo = new(labelMemo)
	}
	p.memo.begin()
	p.Lines, p.Bad, p.BadLine, p.Changed, p.series, p.steps = 0, 0, nil, false, 0, 0
	p.at, p.number, p.long, p.eof, p.over = 0, 0, false, false, false
}

// feed parses the last piece of a page.
func (p *Reader) feed(b []byte) {
	if rest := b[p.feedLines(b):]; len(rest) > 0 {
		p.text(rest)
	}
}

// feedLines parses the complete lines of a piece, and returns their length.
func (p *Reader) feedLines(b []byte) (n int) {
	for {
		i := bytes.IndexByte(b[n:], '\n')
		if i < 0 {
			return n
		}
		p.text(b[n : n+i])
		n += i + 1
	}
}

// skip marks the current line as too long.
func (p *Reader) skip() { p.long = true }

// text parses one line.
func (p *Reader) text(text []byte) {
	p.number++
	if n := len(text); n > 0 && text[n-1] == '\r' {
		text = text[:n-1]
	}
	switch {
	case p.long || len(text) > MaxLine:
		p.long = false
		p.refuse(text, errLong)
		return
	case p.eof || len(text) == 0:
		return
	case text[0] == '#':
		if p.eof = string(text) == "# EOF"; p.learn != nil && len(p.entries) == 0 {
			p.learn(text)
		}
		if p.pods != nil {
			p.pods.comment(text)
		}
		return
	}
	e, v, stamp, err := p.sample(text, &p.at)
	if err != nil {
		p.refuse(text, err)
		return
	}
	p.Lines++
	p.take(e, v, stamp)
}

// refuse counts a bad line.
func (p *Reader) refuse(text []byte, err error) {
	if p.Bad++; p.BadLine == nil {
		p.BadLine, p.BadText = fmt.Errorf("line %d: %w", p.number, err), beginning(text)
	}
}

// End finishes a page. It fails if the text is not a metrics page or exceeds a limit.
// Single bad lines are counted.
func (p *Reader) End() error {
	p.line.Release()
	if p.at != len(p.entries) {
		p.differ(p.at)
	}
	if p.Changed {
		if n := len(p.next); cap(p.entries) < n || cap(p.entries) > n+n/8 {
			p.entries = make([]entry, 0, n)
		}
		p.entries = append(p.entries[:0], p.next...)
	}
	if err := p.tooMuch(); err != nil {
		p.forget()
		return err
	}
	if p.Bad > p.Lines {
		p.forget()
		return fmt.Errorf("not a metrics page, %d of %d lines are bad: %w", p.Bad, p.Bad+p.Lines, p.BadLine)
	}
	if p.gpus != nil && p.Changed {
		p.gpus.settle(p)
	}
	if p.pods != nil {
		p.pods.combine(p)
	}
	return nil
}

// tooMuch returns an error if the page exceeds a limit.
func (p *Reader) tooMuch() error {
	switch {
	case p.number > maxLines:
		return errLines
	case p.over:
		return errPoints
	}
	return nil
}

// sample parses one sample line. at is the index of the expected entry. The returned
// entry is valid until the next line.
func (p *Reader) sample(text []byte, at *int) (*entry, float64, int64, error) {
	end := promtext.IdentityEnd(text)
	if end > 0 {
		if e := p.expect(maphash.Bytes(p.seed, text[:end]), at); e != nil {
			v, stamp, err := promtext.Tail(text[end:])
			if err == nil && e.evidence != noEvidence {
				p.observe(e, v)
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
	if e.evidence != noEvidence {
		p.observe(e, p.line.Value)
	}
	if e.use == value || e.use == share {
		if p.series++; p.series > maxSeries {
			*e = entry{}
		}
	}
	if end == p.line.End && len(p.next) < p.most {
		e.hash = maphash.Bytes(p.seed, text[:end])
		p.next = append(p.next, *e)
	}
	return e, p.line.Value, p.line.Stamp, nil
}

// expect finds the entry of an identity at index at or after it, because lines may
// have left the page. The returned entry is valid until the next line.
func (p *Reader) expect(hash uint64, at *int) *entry {
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
		if p.Changed {
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

// observe passes the value of a line that is evidence to the identifier.
func (p *Reader) observe(e *entry, v float64) {
	if v != v {
		return
	}
	now := digest(v)
	p.who.observe(e.slot, e.evidence, v*e.scale, e.seen != 0 && e.seen != now)
	e.seen = now
}

// differ starts this page's own list, with the first n entries of the last page.
func (p *Reader) differ(n int) {
	if !p.Changed {
		p.Changed = true
		p.next = append(p.next[:0], p.entries[:n]...)
	}
}

// take stores a line's value according to its use.
func (p *Reader) take(e *entry, v float64, stamp int64) {
	if e.own != (series.Ref{}) {
		if len(p.own) >= maxPoints {
			p.over = true
			return
		}
		p.own = append(p.own, series.Point{Ref: e.own, Value: v})
	}
	switch e.use {
	case value, part, share:
		if len(p.points) >= maxPoints {
			p.over = true
			return
		}
		x := point{e.ref, e.slot, v, stamp, e.use == share, e.copy}
		if e.use != part {
			x.value = p.OutOfRange.limit(e, v)
		}
		p.points = append(p.points, x)
	case collected:
		p.Meta.Collected = v
	case interval:
		p.Meta.Interval = v
	case took:
		p.Meta.Took = v
	case lastSuccess:
		p.who.success(e.slot, v)
	}
}

// beginning returns the beginning of a bad line. Most of a long line is not copied.
func beginning(b []byte) string {
	const most = 80
	return excerpt.Of(string(b[:min(len(b), 2*most)]), most)
}

// CollectedAt returns when an agent collected the page, by its own clock. ok is false if
// the page does not say it.
func (p *Reader) CollectedAt() (at time.Time, ok bool) {
	s := p.Meta.Collected
	if !(s > 0 && s < promtext.MaxUnix) {
		return time.Time{}, false
	}
	whole, part := math.Modf(s)
	return time.Unix(int64(whole), int64(math.Round(part*1e6))*1000), true // a float64 has the precision of a microsecond
}

// NewestLine returns the newest timestamp of a line with a value, in ms since 1970;
// 0 if no line has one.
func (p *Reader) NewestLine() int64 {
	newest := int64(0)
	for i := range p.points {
		newest = max(newest, p.points[i].stamp)
	}
	return newest
}

// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"bytes"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
)

// span is the position of a family in a page: its head starts at start, its
// samples are from samples to end. All three are equal for a family without
// samples.
type span struct{ start, samples, end int }

// page is one rendered collection. Its body does not change while it is
// acquired. The other forms are built once, at the first request for them.
type page struct {
	by    *renderer // the renderer of the families
	body  []byte    // the text format
	spans []span    // by family
	until time.Time
	refs  int // guarded by pages.mu

	mu       sync.Mutex // guards what follows
	metrics  []byte     // as OpenMetrics; empty: not built yet
	packed   [numFormats]bytes.Buffer
	isPacked [numFormats]bool
}

func (p *page) reset(by *renderer, until time.Time) {
	p.by, p.body, p.spans, p.until = by, p.body[:0], p.spans[:0], until
	p.metrics = p.metrics[:0]
	p.isPacked = [numFormats]bool{}
}

// whole returns the page in a format; the caller holds p.mu.
func (p *page) whole(f format) []byte {
	if f == text {
		return p.body
	}
	if len(p.metrics) == 0 {
		p.metrics = p.appendSome(p.metrics, f, nil)
	}
	return p.metrics
}

// appendSome writes the families in want; all if want is nil.
func (p *page) appendSome(b []byte, f format, want []bool) []byte {
	for i, s := range p.spans {
		if s.samples == s.end || want != nil && !want[i] {
			continue
		}
		b = append(b, p.by.families[i].head[f]...)
		b = append(b, p.body[s.samples:s.end]...)
	}
	if f == openMetrics {
		b = append(b, "# EOF\n"...)
	}
	return b
}

// pages holds the current page and reuses released ones. Two pages are enough
// unless a reader is slow.
type pages struct {
	mu      sync.Mutex
	current *page
	free    []*page
}

// spare returns an unused page.
func (ps *pages) spare() *page {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if n := len(ps.free); n > 0 {
		p := ps.free[n-1]
		ps.free = ps.free[:n-1]
		return p
	}
	return &page{}
}

// publish makes p the current page.
func (ps *pages) publish(p *page) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	old := ps.current
	ps.current = p
	if old != nil && old.refs == 0 {
		ps.recycle(old)
	}
}

// acquire returns the current page; nil before the first. The page does not
// change until it is released.
func (ps *pages) acquire() *page {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.current != nil {
		ps.current.refs++
	}
	return ps.current
}

func (ps *pages) release(p *page) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p.refs--
	if p.refs == 0 && p != ps.current {
		ps.recycle(p)
	}
}

// maxFree limits the unused pages that slow readers leave behind.
const maxFree = 2

func (ps *pages) recycle(p *page) {
	if len(ps.free) < maxFree {
		ps.free = append(ps.free, p)
	}
}

// packer compresses one page at a time: its state takes a few hundred
// kilobytes. The standard library's gzip takes twice as long.
type packer struct {
	mu sync.Mutex
	zw *gzip.Writer
}

// pack writes src to dst, compressed.
func (k *packer) pack(dst *bytes.Buffer, src []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.zw == nil {
		k.zw, _ = gzip.NewWriterLevel(dst, gzip.BestSpeed) // the level is valid
	} else {
		k.zw.Reset(dst)
	}
	// A bytes.Buffer's Write does not fail.
	_, _ = k.zw.Write(src)
	_ = k.zw.Close()
}

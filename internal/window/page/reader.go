// SPDX-License-Identifier: Apache-2.0

// Package page reads the text of Prometheus expositions into samples: the pages of
// exporters of GPUs (our agents, dcgm-exporters, AMD's) and of pods with metrics of
// their own. It does no I/O and reads no clock: scrape fetches the pages and stores what
// they have.
//
//   - A malformed line is counted and skipped; the rest of the page is kept. One
//     unescaped label does not hide a node.
//   - A page with more malformed lines than valid ones is an error.
//   - NaN, infinities and numbers outside the field's range are not values.
//   - A device that its agent could not read at this tick has no value for the tick,
//     although the agent still shows the last one.
//   - A page that is like the last one allocates nothing.
package page

import (
	"maps"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// Config is whose pages a Reader reads, and what it keeps of them.
type Config struct {
	Target *series.Target
	Labels series.TargetLabels
	Names  *Names               // nil: no query reads series
	Learn  func(comment []byte) // takes the comments of a page without an earlier one; nil: none does

	Fields gpu.FieldSet // of an exporter of GPUs, of all of them; empty: all
	Named  *Named       // beside Fields, of the GPUs of those who name them
	// Watch estimates the age of an exporter's values from their changes: its pages lack
	// the time of collection.
	Watch bool

	Metrics []Metric // of a pod
}

// NewExporter returns a reader of the pages of an exporter of GPUs.
func NewExporter(cfg Config) *Reader {
	g := newGPUs(cfg.Target, cfg.Fields)
	g.watch, g.tenants.named, g.tenants.names = cfg.Watch, cfg.Named, cfg.Names
	g.labels = newLabeller(&cfg, false)
	p := newReader(g)
	p.gpus, p.labels, p.learn = g, &g.labels, cfg.Learn
	return p
}

// NewPod returns a reader of the pages of a pod's own metrics.
func NewPod(cfg Config) *Reader {
	m := newPodMetrics(cfg.Target, cfg.Metrics)
	m.labels = newLabeller(&cfg, true)
	p := newReader(m)
	p.pods, p.labels, p.learn = m, &m.labels, cfg.Learn
	return p
}

// Fill adds the page's values to a batch, and those about the scrape, which took so
// long. The values of devices without new ones, as Freshness found, are left out.
func (p *Reader) Fill(b *series.Batch, took time.Duration) {
	if p.gpus != nil {
		p.gpus.fill(p, b)
	} else {
		p.pods.fill(p, b)
	}
	p.labels.fillMeters(took, p.Lines, b)
}

// Exposed lists the page's series for queries.
func (p *Reader) Exposed() []series.Exposed { return p.labels.exposed(p.entries) }

// Owners lists the owners of an exporter's devices. If they name other fields than those of the last page, IsOvergrown
// is set.
func (p *Reader) Owners() []series.DeviceOwners {
	list := p.gpus.deviceOwners(p.entries)
	p.gpus.tenants.setOwners(list)
	return list
}

// SetNamed sets Config.Named. If that changes what is kept of an exporter, IsOvergrown is set.
func (p *Reader) SetNamed(named *Named) {
	if p.gpus != nil {
		p.gpus.tenants.setNamed(named)
	}
}

// Spaces lists the namespaces whose pods hold an exporter's devices.
func (p *Reader) Spaces() []string { return p.gpus.tenants.spaces }

// Freshness determines which of an exporter's devices have new values on a page of a
// collection at at, and prepares for the next page. If stamped is set, the page has the
// time of collection: the values of all devices count.
func (p *Reader) Freshness(at time.Time, stamped bool, learned *IntervalEstimate) Freshness {
	if stamped {
		p.gpus.acceptAll()
		return Freshness{Method: FreshByTimestamp}
	}
	return p.gpus.assess(at, learned)
}

// IsOld reports whether a page of a pod is older than an earlier one: one of its counters
// is lower, for the first or the second page in a row. Call it once for each page.
func (p *Reader) IsOld() bool { return p.pods.isOld() }

// HasValues reports whether the page has a value that is kept.
func (p *Reader) HasValues() bool { return len(p.points) > 0 }

// HasFound reports whether an exporter's pages had a field that is kept.
func (p *Reader) HasFound() bool { return len(p.gpus.names) > 0 }

// Found returns the names of the lines with an exporter's fields, sorted.
func (p *Reader) Found() []string { return slices.Sorted(maps.Keys(p.gpus.names)) }

// FoundAll reports whether an exporter's pages had all of Config.Fields, and of what is named of its GPUs.
func (p *Reader) FoundAll() bool {
	var found gpu.FieldSet
	for name := range p.gpus.names {
		if ref, ok := names.Resolve(name); ok {
			if i, ok := gpu.IndexOf(ref.Field); ok {
				found.Add(i)
			}
		}
	}
	return found.Union(p.gpus.want).Union(p.gpus.tenants.fields()) == found
}

// TakeRefused calls f for each kind of things that were refused since the last call.
func (p *Reader) TakeRefused(f func(kind series.Refused, n int)) {
	take := func(refused *[series.NumRefused]int) {
		for kind, n := range refused {
			if n > 0 {
				f(series.Refused(kind), n)
				refused[kind] = 0
			}
		}
	}
	if p.gpus != nil {
		take(&p.gpus.refused)
	}
	take(&p.labels.refused)
}

// IsOvergrown reports whether most of what is remembered has left the page, or a limit
// is reached: Forget helps.
func (p *Reader) IsOvergrown() bool {
	if p.gpus != nil {
		return p.gpus.overgrown(len(p.entries))
	}
	return p.pods.overgrown()
}

// Forget drops what is remembered of the target's lines: the next page is parsed from
// scratch.
func (p *Reader) Forget() {
	p.forget()
	if p.gpus != nil {
		p.gpus.reset()
	} else {
		p.pods.reset()
	}
}

// Shrink frees the entries and halves the limit of remembered lines.
func (p *Reader) Shrink() {
	p.entries, p.next, p.most = nil, nil, p.most/2
}

// Grow raises the limit of remembered lines again. It returns false if it is not reduced.
func (p *Reader) Grow() bool {
	if p.most >= maxEntries {
		return false
	}
	p.most = min(2*p.most+64, maxEntries)
	return true
}

// Buffer is the memory for one page. Readers share buffers: there are as many as
// pages are read at a time.
type Buffer struct {
	points  []point
	own     []series.Point
	entries []entry
	line    line
	memo    labelMemo
}

// SetBuffer gives the reader the memory for the next page.
func (p *Reader) SetBuffer(b *Buffer) {
	p.points, p.own, p.next, p.line, p.memo = b.points, b.own, b.entries, b.line, &b.memo
}

// ReturnBuffer gives the memory back. The page's values are gone, what is remembered
// for the next page stays.
func (p *Reader) ReturnBuffer(b *Buffer) {
	b.points, b.own, b.entries, b.line = Kept(p.points), Kept(p.own), Kept(p.next), p.line
	p.points, p.own, p.next, p.line, p.memo = nil, nil, nil, line{}, nil
	p.labels.release()
}

// maxKept is the capacity in values that a buffer keeps: a node of 8 GPUs with 7
// instances each and 20 fields. Larger lists are freed after the page.
const maxKept = 1 << 10

// Kept empties a list. It returns nil for a list that is too large to be kept.
func Kept[T any](list []T) []T {
	if cap(list) > maxKept {
		return nil
	}
	return list[:0]
}

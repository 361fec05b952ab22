// SPDX-License-Identifier: Apache-2.0

package expo

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// format is one of the two text formats.
type format int

const (
	text        format = iota // version 0.0.4
	openMetrics               // 1.0.0
	numFormats
)

// family is one metric: its head in each format and how its samples are made.
type family struct {
	name string
	head [numFormats][]byte
	// always families are served whatever names a scrape asks for: whoever
	// reads a few fields still needs to know when they were collected and whose
	// the device is.
	always bool
	metric *metric                                // a field's, or
	meta   func(b []byte, in *renderInput) []byte // one of ours
}

// metric is a field that is shown under a name.
type metric struct {
	name   string
	number number
}

// renderInput is what a page is made of.
type renderInput struct {
	snap     *gpu.Snapshot
	stats    Stats
	cfg      *Config
	now      time.Time
	entities []entity // devices with values, without duplicates
	arena    []byte   // their labels
}

// renderer makes pages. It keeps its memory from one page to the next and is
// not safe for concurrent use.
type renderer struct {
	families   []family
	labels     []labelField
	hostLabel  []byte // `,hostname="…"` or nothing
	kubernetes bool
	in         renderInput
}

func newRenderer(cfg *Config) *renderer {
	r := &renderer{kubernetes: cfg.Kubernetes}
	r.in.cfg = cfg
	if cfg.Hostname != "" {
		r.hostLabel = appendLabel([]byte{','}, cfg.Profile.HostLabel(), cfg.Hostname)
	}
	for _, l := range cfg.Collectors.Labels {
		r.labels = append(r.labels, labelField{name: l.Name, number: numberOf(l.Ref)})
	}
	slices.SortFunc(r.labels, func(a, b labelField) int { return cmp.Compare(a.name, b.name) })
	for _, c := range cfg.Collectors.Metrics {
		f := newFamily(c.Name, c.Type, c.Help)
		f.metric = &metric{name: c.Name, number: numberOf(c.Ref)}
		r.families = append(r.families, f)
	}
	r.families = append(r.families, metaFamilies(cfg)...)
	return r
}

// newFamily renders the heads. In OpenMetrics a counter is named without its
// _total, one that has none is unknown, and so are the types whose samples we
// do not have.
func newFamily(name string, typ Type, help string) family {
	f := family{name: name}
	f.head[text] = appendHead(nil, name, string(typ), help, false)
	omName, omType := name, string(typ)
	switch base, isTotal := strings.CutSuffix(name, "_total"); {
	case typ == Gauge:
	case typ == Counter && isTotal:
		omName = base
	default:
		omType = "unknown"
	}
	f.head[openMetrics] = appendHead(nil, omName, omType, help, true)
	return f
}

func appendHead(b []byte, name, typ, help string, quotes bool) []byte {
	b = append(b, "# HELP "...)
	b = append(b, name...)
	b = append(b, ' ')
	b = appendEscaped(b, help, quotes)
	b = append(b, "\n# TYPE "...)
	b = append(b, name...)
	b = append(b, ' ')
	b = append(b, typ...)
	return append(b, '\n')
}

// render fills p with the snapshot as the text format has it. In steady state
// it allocates nothing.
func (r *renderer) render(p *page, s *gpu.Snapshot, st Stats, now time.Time) {
	in := &r.in
	in.snap, in.stats, in.now = s, st, now
	r.collectEntities()
	p.reset(now.Add(gpu.MaxAge(s.Interval)))
	b := p.body
	for i := range r.families {
		f := &r.families[i]
		start := len(b)
		b = append(b, f.head[text]...)
		head := len(b)
		if f.metric != nil {
			b = f.metric.append(b, in)
		} else {
			b = f.meta(b, in)
		}
		if len(b) == head { // no samples: no head either
			b, head = b[:start], start
		}
		p.spans = append(p.spans, span{start: start, samples: head, end: len(b)})
	}
	p.body = b
	in.snap = nil
}

// collectEntities lists the devices to show and renders their labels.
func (r *renderer) collectEntities() {
	in := &r.in
	in.entities, in.arena = in.entities[:0], in.arena[:0]
	maxAge := gpu.MaxAge(in.snap.Interval)
	for i := range in.snap.Devices {
		d := &in.snap.Devices[i]
		if d.Fresh(in.now, maxAge) && !listed(in.entities, d) {
			in.entities = append(in.entities, entity{dev: d})
		}
	}
	for i := range in.entities {
		in.arena = r.appendIdentity(in.arena, &in.entities[i], in.snap.Devices)
	}
}

func listed(entities []entity, d *gpu.DeviceSnapshot) bool {
	for i := range entities {
		if sameSeries(&entities[i].dev.Device, &d.Device) {
			return true
		}
	}
	return false
}

func (m *metric) append(b []byte, in *renderInput) []byte {
	for i := range in.entities {
		e := &in.entities[i]
		v, ok := e.dev.Values.GetAt(m.number.index)
		if !ok {
			continue
		}
		b = append(b, m.name...)
		if m.number.field == gpu.XIDErrors {
			b = append(b, in.arena[e.start:e.mid]...)
			b = appendXIDLabels(b, uint64(max(v, 0)))
			b = append(b, in.arena[e.mid:e.end]...)
		} else {
			b = append(b, in.arena[e.start:e.end]...)
		}
		b = m.number.append(b, v)
		b = append(b, '\n')
	}
	return b
}

func appendXIDLabels(b []byte, code uint64) []byte {
	b = append(b, `,err_code="`...)
	b = strconv.AppendUint(b, code, 10)
	b = append(b, `",err_msg="`...)
	b = append(b, xidText(code)...)
	return append(b, '"')
}

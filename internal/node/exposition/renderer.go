// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"cmp"
	"hash/maphash"
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
	name    string
	typ     Type
	help    string
	head    [numFormats][]byte
	untyped bool // OpenMetrics has no type for it
	// always families are served whatever names a scrape selects: a reader of a
	// few fields needs their collection time and the device's owner too.
	always  bool
	further bool                                   // only with Config.Further
	metric  *metric                                // a field's, or
	meta    func(b []byte, in *renderInput) []byte // one of ours
}

// metric is a field under its shown name, or a derived metric.
type metric struct {
	name    string
	number  number
	derived Derived
	part    bool // a field of parts
}

// renderInput is the input of one page.
type renderInput struct {
	snap     *gpu.Snapshot
	stats    Stats
	cfg      *Config
	now      time.Time
	entities []entity // the devices of which something is known, without duplicates
	parts    []partEntity
	arena    []byte // their labels
	history  *history
	windows  windows
	totals   *totals
	fields   gpu.FieldSet // the collected fields
}

// renderer renders pages. It reuses its memory and is not safe for concurrent
// use.
type renderer struct {
	cfg       *Config
	families  []family
	byName    map[string]int // families by their names
	lossy     bool           // a family has no type, or another one, in OpenMetrics
	labels    []labelField
	hostLabel []byte // `,hostname="…"` and static labels, or nothing
	linkHost  []byte // the same of NVLinks, where it is hostname in every profile
	// relabelled maps labels to their new names; empty for a dropped label.
	relabelled map[string]string
	names      labelNames
	reserved   map[string]bool
	in         renderInput
	adding     *gpu.DeviceSnapshot // the device of addOwner
	stale      bool                // its values are too old
	addOwner   func(*gpu.Owner)    // adds its entities; a field, so that the closure is allocated once
	seed       maphash.Seed
	seen       map[labelsOf]bool // of this page's devices and parts
}

func newRenderer(cfg *Config, h *history, t *totals) *renderer {
	r := &renderer{cfg: cfg, names: namesOf(cfg.OldNamespace), reserved: reservedNames(cfg), byName: map[string]int{}}
	r.seed, r.seen = maphash.MakeSeed(), map[labelsOf]bool{}
	r.relabelled = cfg.Relabel.relabelled()
	r.addOwner = r.addEntities
	r.in.cfg, r.in.history, r.in.totals = cfg, h, t
	r.in.fields = cfg.Collectors.Fields()
	r.in.windows = windows{clock: windowLabel(cfg.clockWindow()), xid: windowLabel(cfg.xidWindow())}
	if cfg.Hostname != "" {
		r.hostLabel = r.label(nil, cfg.Profile.HostLabel(), cfg.Hostname)
		r.linkHost = r.label(nil, "hostname", cfg.Hostname)
	}
	r.hostLabel = cfg.Relabel.static(r.hostLabel)
	r.linkHost = cfg.Relabel.static(r.linkHost)
	for _, l := range cfg.Collectors.Labels {
		if l.Name = r.shown(l.Name); l.Name == "" {
			continue
		}
		r.labels = append(r.labels, labelField{name: l.Name, number: numberOf(l.Ref)})
	}
	slices.SortFunc(r.labels, func(a, b labelField) int { return cmp.Compare(a.name, b.name) })
	for _, c := range cfg.Collectors.Metrics {
		f := newFamily(c.Name, c.Type, c.Help)
		f.metric = &metric{name: c.Name, derived: c.Exp}
		if c.Exp == NotDerived {
			f.metric.number = numberOf(c.Ref)
			f.metric.part = int(f.metric.number.index) >= len(gpu.Fields()) && !f.metric.number.passed
		}
		r.families = append(r.families, f)
	}
	r.families = append(r.families, metaFamilies(cfg)...)
	for i := range r.families {
		r.byName[r.families[i].name] = i
	}
	for i := range r.families {
		f := &r.families[i]
		// OpenMetrics names a counter without _total, which may be another
		// metric's name.
		if base, isTotal := strings.CutSuffix(f.name, "_total"); isTotal && !f.untyped {
			if _, taken := r.byName[base]; taken {
				f.setHead("unknown")
			}
		}
		r.lossy = r.lossy || f.untyped
	}
	return r
}

// newFamily renders the heads. In OpenMetrics a counter is named without its
// _total. A counter without _total is unknown there, as are histograms and
// summaries, whose samples are missing here.
func newFamily(name string, typ Type, help string) family {
	f := family{name: name, typ: typ, help: help}
	f.head[text] = appendHead(nil, name, string(typ), help, false)
	if typ == Gauge || typ == Counter && strings.HasSuffix(name, "_total") {
		f.setHead(string(typ))
	} else {
		f.setHead("unknown")
	}
	return f
}

// setHead renders the head for OpenMetrics.
func (f *family) setHead(typ string) {
	name := f.name
	if typ == string(Counter) {
		name = strings.TrimSuffix(name, "_total")
	}
	f.untyped = typ == "unknown"
	f.head[openMetrics] = appendHead(nil, name, typ, f.help, true)
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

// render renders the snapshot into p in the text format. In steady state it
// does not allocate.
func (r *renderer) render(p *page, s *gpu.Snapshot, st Stats, now time.Time) {
	in := &r.in
	in.snap, in.stats, in.now = s, st, now
	r.collectEntities()
	r.collectParts()
	p.reset(r, now.Add(gpu.MaxAge(s.Interval)))
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
	in.snap, r.adding = nil, nil
	clear(in.entities) // do not keep the snapshot in memory
	clear(in.parts)
}

// collectEntities lists the devices to show and renders their labels.
func (r *renderer) collectEntities() {
	in := &r.in
	in.entities, in.arena = in.entities[:0], in.arena[:0]
	maxAge := gpu.MaxAge(in.snap.Interval)
	for i := range in.snap.Devices {
		d := &in.snap.Devices[i]
		fresh := d.Fresh(in.now, maxAge)
		if !fresh && (!isKnown(d) || hasTwin(in.snap.Devices[i+1:], d)) {
			continue
		}
		if twin := listed(in.entities, d); twin == nil {
			if fresh {
				in.totals.notNumbers += uint64(d.Values.Wrong())
			}
			r.adding, r.stale = d, !fresh
			if !r.addShares(d) {
				r.owners(d, r.addOwner)
			}
		} else if twin.UUID == d.UUID { // else: compute instances of one GPU instance
			in.totals.duplicates++
		}
	}
	clear(r.seen)
	kept := in.entities[:0]
	for _, e := range in.entities {
		start := len(in.arena)
		in.arena = r.appendIdentity(in.arena, &e)
		if r.isNew(start, e.shows(gpu.GPUUtil), e.shows(gpu.GPUTemp)) {
			kept = append(kept, e)
		}
	}
	clear(in.entities[len(kept):])
	in.entities = kept
}

// isKnown reports whether there is something to show of a device without fresh values.
func isKnown(d *gpu.DeviceSnapshot) bool {
	return !d.Collected.IsZero() || d.Err != nil || len(d.XIDs)+len(d.GPUXIDs) > 0
}

// hasTwin reports whether one of the devices has the same series as d, as compute
// instances of one GPU instance have.
func hasTwin(devices []gpu.DeviceSnapshot, d *gpu.DeviceSnapshot) bool {
	for i := range devices {
		if sameSeries(&devices[i].Device, &d.Device) {
			return true
		}
	}
	return false
}

// labelsOf is the identity of an entity's series: the labels, and whether they
// are on the fields that processes have a share of or on the others.
type labelsOf struct {
	hash           uint64
	shared, others bool
}

// isNew reports whether the labels in the arena from start on are new on this
// page. An entity with the same labels is left out: Prometheus rejects a whole
// page for one duplicate series.
func (r *renderer) isNew(start int, shared, others bool) bool {
	in := &r.in
	l := labelsOf{maphash.Bytes(r.seed, in.arena[start:]), shared, others}
	if r.seen[l] {
		in.arena = in.arena[:start]
		in.totals.duplicates++
		return false
	}
	r.seen[l] = true
	return true
}

// addEntities adds the current device for one owner, once for each of its jobs.
func (r *renderer) addEntities(o *gpu.Owner) {
	d, in := r.adding, &r.in
	for i := range in.entities {
		e := &in.entities[i]
		if e.owner != nil && o != nil && *e.owner == *o && sameSeries(&e.dev.Device, &d.Device) {
			return // the owner holds several compute instances of one GPU instance
		}
	}
	if len(d.Jobs) == 0 {
		in.entities = append(in.entities, entity{dev: d, stale: r.stale, owner: o})
		return
	}
	for _, job := range d.Jobs {
		in.entities = append(in.entities, entity{dev: d, stale: r.stale, owner: o, job: job})
	}
}

// listed returns the listed device with the same series as d; nil without one.
func listed(entities []entity, d *gpu.DeviceSnapshot) *gpu.DeviceSnapshot {
	for i := range entities {
		if sameSeries(&entities[i].dev.Device, &d.Device) {
			return entities[i].dev
		}
	}
	return nil
}

func (m *metric) append(b []byte, in *renderInput) []byte {
	if m.part {
		return m.appendParts(b, in)
	}
	if m.number.passed { // the reader has read it of those that have it
		b = m.appendParts(b, in)
	}
	for i := range in.entities {
		e := &in.entities[i]
		if m.derived != NotDerived {
			if e.shows(m.number.field) {
				b = m.appendDerived(b, in, e)
			}
			continue
		}
		if !e.shows(m.number.field) || e.stale && !m.number.lasting {
			continue
		}
		v, ok := e.value(&m.number)
		if !ok {
			continue
		}
		if !m.number.sane(v.Float) {
			in.totals.outOfRange++
			continue
		}
		b = append(b, m.name...)
		if m.number.field == gpu.XIDErrors {
			b = append(b, in.arena[e.start:e.mid]...)
			b = appendXIDLabels(b, uint64(max(v.Float, 0)))
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

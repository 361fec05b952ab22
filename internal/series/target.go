// SPDX-License-Identifier: Apache-2.0

package series

import (
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// The reasons for which Append stores nothing.
var (
	// ErrRepeated: the stamp is not newer than the newest one; the exporter
	// has not collected since, or answered out of order.
	ErrRepeated = errors.New("collection time did not advance")
	// ErrDropped: the target was dropped from its store.
	ErrDropped = errors.New("target was dropped")
)

// rewindAfter is how far behind the newest stamp a stamp must be for the
// target's clock to count as set back; less is an answer out of order.
const rewindAfter = 5 * time.Second

// Key names a series of a target: a field of a device, or a metric of the pod
// that the target is.
type Key struct {
	Device string      // a GPU's UUID, or UUID/giN for MIG instance N of it; empty for a pod's own metric
	Field  gpu.FieldID // of the device
	Metric string      // the pod's own metric's name
	Pod    string      // NAMESPACE/NAME of the pod whose share of the device's field this is; empty: the device's own
}

// Ref is a Key interned by its target, for Append. The zero Ref is none.
type Ref struct{ id, gen uint32 }

// Point is one value of a Batch.
type Point struct {
	Ref   Ref
	Value float64 // NaN and infinities are not stored
}

// Batch is what one scrape gave, all of one stamp. Its owner reuses it.
type Batch struct{ Points []Point }

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() { b.Points = b.Points[:0] }

// Add appends a value.
func (b *Batch) Add(r Ref, v float64) { b.Points = append(b.Points, Point{r, v}) }

// Target is one exposition and its window. Ref, Append and SetOwners are its
// writer's, one goroutine at a time.
type Target struct {
	store  *Store
	name   string
	labels TargetLabels // guarded by store.mu

	dropped bool // guarded by store.mu

	mu      sync.RWMutex
	closed  bool
	ring    ring
	series  []serie
	free    []uint32           // ids of dead series
	ids     map[string]uint32  // a pod's own metrics
	devices map[string]*device // by UUID
	swept   int64              // the stamp of the last sweep
	short   bool               // MaxBytes keeps the window shorter than Span

	newest atomic.Int64 // the newest stamp, ns
	owned  atomic.Int32 // devices with an owner
	keep   atomic.Int64 // three intervals, ns; 0: the interval is not known
}

// serie is one column of the ring.
type serie struct {
	gen  uint32
	wide bool
	live bool
	col  int32
	last int64 // the newest stamp when it last got a value or a Ref
	key  Key
}

// device is one GPU as a target shows it.
type device struct {
	uuid   string
	fields []deviceField
	shares []deviceShare
	owners []gpu.Owner // the list given to SetOwners
	since  int64       // when these became the owners, ns; 0: never set
}

type deviceField struct {
	field gpu.FieldID
	id    uint32
}

// deviceShare is a pod's share of a field, where that is measured.
type deviceShare struct {
	deviceField
	pod string // as in Key
}

func (d *device) series(f gpu.FieldID) (uint32, bool) {
	for _, x := range d.fields {
		if x.field == f {
			return x.id, true
		}
	}
	return 0, false
}

// Name is the target's name in its store.
func (t *Target) Name() string { return t.name }

// SetInterval says how often the target's values are collected, where that is
// known and its samples carry the times of its collections: a value then counts
// for three intervals, even where a reader's maxAge is less. 0: it is not known.
func (t *Target) SetInterval(d time.Duration) {
	t.keep.Store(3 * int64(d))
}

// Ref interns a key; it is false where the store has its most series already
// or the key names nothing. A Ref stays good while its series has values
// within the window; Append says when one is not.
func (t *Target) Ref(k Key) (Ref, bool) {
	if (k.Device == "") == (k.Metric == "") || k.Device == "" && k.Pod != "" {
		return Ref{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return Ref{}, false
	}
	if id, ok := t.lookup(k); ok {
		return t.touch(id), true
	}
	if t.store.series.Load() >= int64(t.store.cfg.MaxSeries) {
		t.sweep()
		if t.store.series.Load() >= int64(t.store.cfg.MaxSeries) {
			t.store.overflow.Add(1)
			return Ref{}, false
		}
	}
	return t.touch(t.intern(k)), true
}

// touch keeps a series that is about to get a value from being swept.
func (t *Target) touch(id uint32) Ref {
	s := &t.series[id]
	if newest, ok := t.ring.newest(); ok {
		s.last = newest
	}
	return Ref{id, s.gen}
}

func (t *Target) lookup(k Key) (uint32, bool) {
	if k.Device == "" {
		id, ok := t.ids[k.Metric]
		return id, ok
	}
	d := t.devices[k.Device]
	switch {
	case d == nil:
		return 0, false
	case k.Pod == "":
		return d.series(k.Field)
	}
	for i := range d.shares {
		if s := &d.shares[i]; s.field == k.Field && s.pod == k.Pod {
			return s.id, true
		}
	}
	return 0, false
}

func (t *Target) intern(k Key) uint32 {
	var id uint32
	if n := len(t.free); n > 0 {
		id, t.free = t.free[n-1], t.free[:n-1]
	} else {
		id = uint32(len(t.series))
		t.series = append(t.series, serie{})
	}
	s := &t.series[id]
	*s = serie{gen: s.gen + 1, live: true, wide: isWide(k), key: k}
	before := t.ring.bytes()
	s.col = t.ring.addColumn(s.wide)
	t.store.bytes.Add(t.ring.bytes() - before)
	t.store.series.Add(1)
	if k.Device == "" {
		t.ids[k.Metric] = id
	} else {
		d := t.device(k.Device)
		if k.Pod != "" {
			d.shares = append(d.shares, deviceShare{deviceField{k.Field, id}, k.Pod})
		} else {
			d.fields = append(d.fields, deviceField{k.Field, id})
		}
	}
	return id
}

func (t *Target) device(uuid string) *device {
	d := t.devices[uuid]
	if d == nil {
		d = &device{uuid: uuid}
		t.devices[uuid] = d
	}
	return d
}

// isWide says whether a series needs float64: counters, what is not bounded by
// the hardware below 2^24, and a pod's own metrics, of which nothing is known.
func isWide(k Key) bool {
	f, ok := gpu.Lookup(k.Field)
	if !ok || k.Device == "" || f.Kind == gpu.Counter {
		return true
	}
	switch f.Unit {
	case gpu.BytesPerSecond, gpu.MegabytesPerSecond, gpu.Nanosecond, gpu.Millijoule, gpu.Bitmask:
		return true
	}
	return false
}

// Append stores one scrape's values under the time at which they were
// collected. It returns how many Refs of the batch were not good, which their
// owner interns anew, and ErrRepeated or ErrDropped if nothing was stored. A
// stamp that is more than 5 s behind the newest means that the target's clock
// was set back: its window is emptied and begins anew.
func (t *Target) Append(at time.Time, b *Batch) (unknown int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return 0, ErrDropped
	}
	stamp := at.UnixNano()
	if newest, ok := t.ring.newest(); ok && stamp <= newest {
		if newest-stamp < int64(rewindAfter) {
			t.store.repeated.Add(1)
			return 0, ErrRepeated
		}
		t.rewind(stamp)
	}
	t.makeRoom(stamp)
	t.ring.advance(stamp)
	t.newest.Store(stamp)
	stored := int64(0)
	for _, p := range b.Points {
		if int(p.Ref.id) >= len(t.series) {
			unknown++
			continue
		}
		s := &t.series[p.Ref.id]
		if s.gen != p.Ref.gen || !s.live {
			unknown++
			continue
		}
		if math.IsNaN(p.Value) || math.IsInf(p.Value, 0) {
			continue
		}
		t.ring.set(s.wide, s.col, p.Value)
		s.last = stamp
		stored++
	}
	t.store.samples.Add(stored)
	t.store.unknown.Add(uint64(unknown))
	return unknown, nil
}

// rewind empties the window of a target whose clock was set back to stamp;
// its devices' owners stay theirs, from the new time on.
func (t *Target) rewind(stamp int64) {
	t.store.rewound.Add(1)
	t.ring.clear()
	t.swept = stamp
	for i := range t.series {
		t.series[i].last = 0
	}
	for _, d := range t.devices {
		if d.since > stamp {
			d.since = stamp
		}
	}
	t.eachTenure(func(n *tenure) bool {
		n.from = min(n.from, stamp)
		return true
	})
}

// makeRoom lets the ring grow while it holds less than the span, sweeps dead
// series once a span, and otherwise leaves the oldest slot to be overwritten.
func (t *Target) makeRoom(stamp int64) {
	cfg := &t.store.cfg
	if t.swept == 0 {
		t.swept = stamp
	} else if stamp-t.swept > int64(cfg.Span) {
		t.swept = stamp
		t.sweep()
	}
	if !t.ring.full() {
		return
	}
	oldest, filled := t.ring.oldest()
	most := int(cfg.Span/cfg.Interval) + 1
	if filled && stamp-oldest > int64(cfg.Span) || t.ring.slots() >= most {
		t.short = false
		return
	}
	want := min(max(8, 2*t.ring.slots()), most)
	grow := t.ring.bytesWith(want) - t.ring.bytes()
	least := int(time.Minute/cfg.Interval) + 1
	if want > least && t.store.bytes.Load()+grow > cfg.MaxBytes {
		t.short = true
		return
	}
	t.ring.resize(want)
	t.store.bytes.Add(grow)
}

// sweep frees the series that have no value within the window, and the devices
// that have no series and no owner.
func (t *Target) sweep() {
	oldest, ok := t.ring.oldest()
	if !ok {
		return
	}
	for id := range t.series {
		s := &t.series[id]
		if !s.live || s.last >= oldest {
			continue
		}
		t.forgetKey(s.key)
		t.ring.freeColumn(s.wide, s.col)
		s.live, s.key = false, Key{}
		s.gen++
		t.free = append(t.free, uint32(id))
		t.store.series.Add(-1)
	}
	for uuid, d := range t.devices {
		if len(d.fields) == 0 && len(d.shares) == 0 && len(d.owners) == 0 {
			delete(t.devices, uuid)
		}
	}
}

func (t *Target) forgetKey(k Key) {
	if k.Device == "" {
		delete(t.ids, k.Metric)
		return
	}
	d := t.devices[k.Device]
	if k.Pod != "" {
		d.shares = slices.DeleteFunc(d.shares, func(s deviceShare) bool { return s.field == k.Field && s.pod == k.Pod })
		return
	}
	for i, f := range d.fields {
		if f.field == k.Field {
			d.fields = append(d.fields[:i], d.fields[i+1:]...)
			return
		}
	}
}

func (t *Target) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.eachTenure(func(*tenure) bool { return false })
	live := 0
	for i := range t.series {
		if t.series[i].live {
			live++
		}
	}
	t.store.series.Add(-int64(live))
	t.store.bytes.Add(-t.ring.bytes())
	t.ring, t.series, t.free, t.ids, t.devices = ring{}, nil, nil, nil, nil
}

func (t *Target) isShort() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.short
}

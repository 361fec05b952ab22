// SPDX-License-Identifier: Apache-2.0

package series

import (
	"encoding/binary"
	"errors"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/ledger"
	"github.com/gpupilot/gpupilot/internal/window/ring"
)

// The errors of Append, which then stores nothing.
var (
	// ErrRepeated: the timestamp is not newer than the newest one. The exporter has
	// not collected again, or responses arrived out of order.
	ErrRepeated = errors.New("collection time did not advance")
	// ErrDropped: the target was dropped from its store.
	ErrDropped = errors.New("target was dropped")
	// ErrNoMemory: the store's MaxBytes has no room for the target.
	ErrNoMemory = errors.New("no room in the memory limit of the windows")
)

// rewindAfter is the difference to the newest timestamp from which an older one means
// that the target's clock was set back. A smaller difference is a response out of
// order.
const rewindAfter = 5 * time.Second

// Key identifies a series of a target: a field of a device, one of a pod's own metrics,
// or a line of the page.
type Key struct {
	Device string      // a GPU's UUID, or UUID/giN for its MIG instance N; empty for a pod's own metric
	Field  gpu.FieldID // of the device
	Metric string      // the name of a pod's own metric
	Pod    string      // NAMESPACE/NAME of the pod, for its share of the device's field; empty for the device's value
	Line   string      // the name and the labels of a line, for its own series; the other parts are then empty
}

// lineKey is the size of a line's key in bytes: a zero byte, which no name has, and the
// hash of the line's identity.
const lineKey = 9

// ofLine returns the key for the series of a line, in place of Line. The target keeps
// no copy of its text.
func (s *Store) ofLine(k Key) Key {
	if k.Line == "" || k != (Key{Line: k.Line}) {
		return k
	}
	var b [lineKey]byte
	binary.LittleEndian.PutUint64(b[1:], maphash.String(s.lineSeed, k.Line))
	return Key{Metric: string(b[:])}
}

// Ref is a Key interned by its target, for Append. The zero Ref is invalid.
type Ref struct{ id, gen uint32 }

// Point is one value of a Batch.
type Point struct {
	Ref   Ref
	Value float64 // NaN and infinities are not stored
}

// Batch is the values of one scrape, all with the same timestamp. Its owner reuses it.
type Batch struct{ Points []Point }

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() { b.Points = b.Points[:0] }

// Add appends a value.
func (b *Batch) Add(r Ref, v float64) { b.Points = append(b.Points, Point{r, v}) }

// Target is one metrics endpoint and its window. Only one goroutine at a time, its
// writer, may call Ref, Append, SetOwners and Account.
type Target struct {
	store      *Store
	name       string
	labels     TargetLabels           // guarded by store.mu
	node       atomic.Pointer[string] // labels.Node
	labelGroup *group                 // guarded by store.mu
	group      *group                 // the same, guarded by mu
	charged    atomic.Int64           // bytes in the ledger; changed under mu
	refused    atomic.Uint64          // refusals since the start

	mu       sync.RWMutex
	closed   bool
	noMemory bool // closed from the start, for lack of memory
	ring     ring.Ring
	series   []seriesState
	free     []uint32           // ids of dead series
	ids      map[string]uint32  // a pod's own metrics
	devices  map[string]*device // by UUID
	measured []*device          // with a series of their utilisation
	pods     map[podKey]*holding

	gen      uint32 // of the newest series
	live     int    // series
	lastPage int    // points of the last batch
	swept    int64  // the timestamp of the last sweep
	cleared  int64  // the newest timestamp at the last clearChurn
	short    bool   // the memory limit makes the window shorter than Span
	limited  int64  // the newest timestamp at the last refusal; 0: none, or before the clock was set back
	listed   bool   // in the store's list of limited targets

	exposed  exposures
	failures ring.Stamps // of failed scrapes

	round   uint32 // updates of owners
	past    int    // ended tenures
	pruneAt int    // prune when past exceeds this
	steps   int    // the work of updates of owners, for tests

	// The addends of size, updated with each change.
	keys     int64 // bytes of names
	lists    int64 // bytes of the devices' and holdings' lists
	writer   int64 // bytes of the writer, see Account
	rings    int64 // bytes of the ring in the ledger
	idsPeak  int   // the most entries of each map: maps do not shrink
	devPeak  int
	podsPeak int

	rank   atomic.Uint32 // labels.Rank
	newest atomic.Int64  // the newest timestamp, ns
	owned  atomic.Int32  // devices with an owner
	keep   atomic.Int64  // three intervals, ns; 0: the interval is unknown
	alone  atomic.Bool   // the node has no other exporter of GPUs; changed under nodeIndex.mu
}

// seriesState is one column of the ring.
type seriesState struct {
	last   int64 // the newest timestamp when it last got a value or a Ref
	gen    uint32
	column ring.Column
	live   bool
	own    bool   // a pod's own metric
	name   string // of the metric, or of the pod for a share; empty for a device's field
}

// Name is the target's name in its store.
func (t *Target) Name() string { return t.name }

// SetInterval sets the interval at which the target's values are collected. A value
// then counts for three intervals, even if a reader's maxAge is shorter. The samples
// must carry the times of collection. 0: unknown.
func (t *Target) SetInterval(d time.Duration) {
	t.keep.Store(3 * int64(d))
}

// Ref interns a key. It returns false if the key is invalid or a name in it is too
// long, or if MaxSeries, MaxDevices or the memory limit have no room. A Ref is valid
// while its series has values. Append counts invalid ones.
func (t *Target) Ref(k Key) (Ref, bool) {
	k = t.store.ofLine(k)
	r, blocked := t.ref(k, false)
	if blocked {
		t.store.rebalance()
		r, _ = t.ref(k, true)
	}
	t.store.rebalanceIfDue()
	return r, r != Ref{}
}

// ref is Ref. If other targets must free memory first, it returns blocked; on the
// last attempt, it refuses the key instead.
func (t *Target) ref(k Key, last bool) (r Ref, blocked bool) {
	if (k.Device == "") == (k.Metric == "") || k.Device == "" && k.Pod != "" || k.Line != "" {
		return Ref{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return Ref{}, false
	}
	if id, ok := t.lookup(k); ok {
		return t.touch(id), false
	}
	defer t.settle()
	if len(k.Device) > maxDevice || len(k.Metric) > maxMetric || len(k.Pod) > maxNamespace+1+maxPod {
		t.refuse(RefusedName, 1)
		return Ref{}, false
	}
	refused, full := t.isFull(k)
	if full || t.live > 2*t.lastPage+churnSlack {
		t.clearChurn(full)
		refused, full = t.isFull(k)
	}
	if full {
		t.refuse(refused, 1)
		return Ref{}, false
	}
	switch v := t.reserve(t.costOfSeries(k)); {
	case v == ledger.NoRoom && !last:
		return Ref{}, true
	case v != ledger.Granted:
		t.refuse(RefusedSeries, 1)
		return Ref{}, false
	}
	return t.touch(t.intern(k)), false
}

// touch protects a series from sweep before it gets its first value.
func (t *Target) touch(id uint32) Ref {
	s := &t.series[id]
	if newest, ok := t.ring.Newest(); ok {
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
		t.series = append(t.series, seriesState{})
	}
	s := &t.series[id]
	t.gen++
	*s = seriesState{gen: t.gen, live: true, own: k.Device == "", name: k.Pod + k.Metric} // one of the two is empty
	s.column = t.ring.AddColumn(k.width())
	t.live++
	t.store.series.Add(1)
	t.keys += TextBytes(len(s.name))
	if s.own {
		t.ids[k.Metric] = id
		t.idsPeak = max(t.idsPeak, len(t.ids))
		return id
	}
	d := t.device(k.Device)
	t.lists -= d.listBytes()
	if k.Pod != "" {
		d.shares = append(d.shares, deviceShare{deviceField{k.Field, id}, k.Pod})
	} else {
		d.fields = append(d.fields, deviceField{k.Field, id})
	}
	if k.Pod == "" && k.Field == gpu.GPUUtil {
		d.util, t.measured = id+1, append(t.measured, d)
	}
	t.lists += d.listBytes()
	return id
}

// isFull reports whether a limit of one target refuses a new series, and which one.
func (t *Target) isFull(k Key) (Refused, bool) {
	if t.live >= MaxSeries {
		return RefusedSeries, true
	}
	d := t.devices[k.Device]
	switch {
	case k.Device == "":
		return 0, false
	case d == nil:
		return RefusedDevice, len(t.devices) >= MaxDevices
	}
	return RefusedSeries, k.Pod != "" && len(d.shares) >= MaxShares
}

func (t *Target) device(uuid string) *device {
	d := t.devices[uuid]
	if d == nil {
		d = &device{uuid: uuid}
		t.devices[uuid] = d
		t.devPeak = max(t.devPeak, len(t.devices))
		t.keys += TextBytes(len(uuid))
	}
	return d
}

// width returns the width with which a series begins.
func (k *Key) width() ring.Width {
	if k.Device == "" {
		return ring.Wide // the range of a pod's own metrics is unknown
	}
	return ring.WidthOf(k.Field)
}

// Append stores the values of one scrape with the time of their collection. It
// returns the number of invalid Refs in the batch; the caller interns their keys
// again. It returns ErrRepeated, ErrDropped or ErrNoMemory if nothing was stored. A
// timestamp of 5 s or more before the newest means that the target's clock was set
// back: the window is emptied and starts again.
func (t *Target) Append(at time.Time, b *Batch) (unknown int, err error) {
	unknown, blocked, err := t.append(at.UnixNano(), b, false)
	if blocked {
		t.store.rebalance()
		unknown, _, err = t.append(at.UnixNano(), b, true)
	}
	t.store.rebalanceIfDue()
	return unknown, err
}

// append is Append. If other targets must free memory first, it stores nothing and
// returns blocked; on the last attempt, it overwrites the oldest slot instead.
func (t *Target) append(stamp int64, b *Batch, last bool) (unknown int, blocked bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.noMemory:
		return 0, false, ErrNoMemory
	case t.closed:
		return 0, false, ErrDropped
	}
	if newest, ok := t.ring.Newest(); ok && stamp <= newest {
		if newest-stamp < int64(rewindAfter) {
			t.store.repeated.Add(1)
			return 0, false, ErrRepeated
		}
		t.rewind(stamp)
	}
	if blocked := t.makeRoom(stamp); blocked && !last {
		return 0, true, nil
	}
	if t.ring.Slots() == 0 {
		return 0, false, ErrNoMemory
	}
	t.ring.Advance(stamp)
	t.newest.Store(stamp)
	unknown = t.fillSlot(b, stamp)
	t.lastPage = len(b.Points)
	t.unlimit(stamp)
	return unknown, false, nil
}

// fillSlot stores the values of a batch in the newest slot.
func (t *Target) fillSlot(b *Batch, stamp int64) (unknown int) {
	stored, widened := int64(0), false
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
		if !t.ring.Set(s.column, p.Value) {
			widened = true
			if !t.widen(p.Ref.id) {
				continue
			}
			s = &t.series[p.Ref.id]
			t.ring.Set(s.column, p.Value)
		}
		s.last = stamp
		stored++
	}
	if widened {
		// New series are seldom short: the short columns are freed if they are many.
		if _, short := t.ring.FreeColumns(); short > t.live/8 {
			t.compact(t.ring.Slots(), true)
		}
		t.settle()
	}
	t.store.samples.Add(stored)
	t.store.unknown.Add(uint64(unknown))
	t.trackIdle(stamp)
	return unknown
}

// widen makes the column of a series wider. If the memory limit has no room for that, the
// target's window becomes shorter. It returns false if the window cannot be shorter.
func (t *Target) widen(id uint32) bool {
	if t.reserve(t.ring.CostOfColumn(ring.Narrow)) != ledger.Granted {
		slots := t.ring.SlotsWidened()
		if slots < minSlots {
			t.refuse(RefusedHistory, 1)
			return false
		}
		t.short = t.short || slots < t.ring.Slots()
		t.compact(slots, true)
		t.limit()
	}
	s := &t.series[id]
	s.column = t.ring.Widen(s.column)
	return true
}

// rewind empties the window of a target whose clock was set back to stamp. The
// devices keep their owners, from the new time on.
func (t *Target) rewind(stamp int64) {
	t.store.rewound.Add(1)
	t.ring.Clear()
	t.swept, t.cleared, t.limited = stamp, 0, 0
	for i := range t.series {
		t.series[i].last = 0
	}
	for _, d := range t.devices {
		d.since, d.idle = min(d.since, stamp), gpu.IdleRun{}
	}
	t.rewindExposures(stamp)
	for _, h := range t.pods {
		for i := range h.spans {
			if n := &h.spans[i]; n.until == open {
				n.from = min(n.from, stamp)
			}
		}
	}
}

// makeRoom prepares the ring for a new slot. It grows a full ring that is shorter
// than Span; otherwise the oldest slot will be overwritten. Once per Span, it sweeps
// series without values. It returns true if the ring could grow after other targets
// free memory.
func (t *Target) makeRoom(stamp int64) (blocked bool) {
	cfg := &t.store.cfg
	if t.swept == 0 {
		t.swept = stamp
	} else if stamp-t.swept > int64(cfg.Span) {
		t.swept = stamp
		t.sweep(math.MinInt64)
		t.prune(stamp - int64(cfg.Span))
		t.settle()
	}
	if !t.ring.Full() {
		return false
	}
	oldest, filled := t.ring.Oldest()
	most := cfg.slots()
	if filled && stamp-oldest > int64(cfg.Span) || t.ring.Slots() >= most {
		t.short = false
		return false
	}
	defer t.settle()
	have := t.ring.Slots()
	for want := min(max(minSlots, have+ring.BlockSlots), most); want > have; want -= max(1, want/8) {
		switch t.reserve(t.ring.CostWith(want)) {
		case ledger.Granted:
			t.ring.Resize(want)
			return false
		case ledger.NoRoom:
			blocked = true
		}
		if want-have <= want/8 {
			break
		}
	}
	t.short = true
	t.limit()
	return blocked
}

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
	PaidBy string      // the namespace that pays for a new series; empty: the target does. It identifies nothing
}

// lineKey is the size of a line's key in bytes: a zero byte, which no name has, and the
// hash of the line's identity.
const lineKey = 9

// ofLine returns the key for the series of a line, in place of Line. The target keeps
// no copy of its text.
func (s *Store) ofLine(k Key) Key {
	if k.Line == "" || k != (Key{Line: k.Line, PaidBy: k.PaidBy}) {
		return k
	}
	var b [lineKey]byte
	binary.LittleEndian.PutUint64(b[1:], maphash.String(s.lineSeed, k.Line))
	return Key{Metric: string(b[:]), PaidBy: k.PaidBy}
}

// width returns the width with which a series begins.
func (k *Key) width() ring.Width {
	if k.Device == "" {
		return ring.Wide // the range of a pod's own metrics is unknown
	}
	return ring.WidthOf(k.Field)
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

// Target is one metrics endpoint and its window: a lock, and the parts that it guards. Only
// one goroutine at a time, its writer, may call Ref, Append, Expose, SetOwners and Account.
type Target struct {
	store *Store
	name  string
	facts facts

	mu       sync.RWMutex
	closed   error // the target is not in its store: ErrDropped, or ErrNoMemory from the start
	account  account
	limits   limits
	columns  columns
	devices  devices
	holdings holdings
	exposed  exposures
	failures ring.Stamps // of failed scrapes
	writer   int64       // bytes of the writer, see Account
	swept    int64       // the timestamp of the last sweep
	cleared  int64       // the newest timestamp at the last clearChurn
}

// facts are what is known of a target without its lock.
type facts struct {
	labels atomic.Pointer[TargetLabels] // changed under Store.mu
	newest atomic.Int64                 // the newest timestamp, ns
	keep   atomic.Int64                 // three intervals, ns; 0: the interval is unknown
	owned  atomic.Int32                 // devices with an owner
	alone  atomic.Bool                  // the node has no other exporter of GPUs; changed under nodeIndex.mu
}

func (f *facts) setLabels(l TargetLabels) { f.labels.Store(&l) }

func (f *facts) rank() uint8 { return f.labels.Load().Rank }

// Name is the target's name in its store.
func (t *Target) Name() string { return t.name }

// SetInterval sets the interval at which the target's values are collected. A value
// then counts for three intervals, even if a reader's maxAge is shorter. The samples
// must carry the times of collection. 0: unknown.
func (t *Target) SetInterval(d time.Duration) {
	t.facts.keep.Store(3 * int64(d))
}

// Keep returns how long a value counts while the page still shows its series: three
// intervals, at least least.
func (t *Target) Keep(least time.Duration) time.Duration {
	return max(time.Duration(t.facts.keep.Load()), least)
}

// Ref interns a key. It returns false if the key is invalid or a name in it is too
// long, or if MaxSeries, MaxDevices or the memory limit have no room. A Ref is valid
// while its series has values. Append counts invalid ones.
func (t *Target) Ref(k Key) (r Ref, ok bool) {
	k = t.store.ofLine(k)
	payer := t.store.payer(k.PaidBy)
	defer payer.letGo()
	t.store.attempt(func(last bool) (blocked bool) {
		r, blocked = t.ref(&k, payer, last)
		return blocked
	})
	return r, r != Ref{}
}

// ref is Ref. If other targets must free memory first, it returns blocked; on the
// last attempt, it refuses the key instead.
func (t *Target) ref(k *Key, payer *group, last bool) (r Ref, blocked bool) {
	if (k.Device == "") == (k.Metric == "") || k.Device == "" && k.Pod != "" || k.Line != "" {
		return Ref{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed != nil {
		return Ref{}, false
	}
	if id, ok := t.lookup(k); ok {
		return t.columns.touch(id), false
	}
	defer t.settle()
	if len(k.Device) > maxDevice || len(k.Metric) > maxMetric || len(k.Pod) > maxNamespace+1+maxPod {
		t.refuse(RefusedName, 1)
		return Ref{}, false
	}
	refused, full := t.isFull(k)
	if full || t.columns.live > 2*t.columns.lastPage+churnSlack {
		t.clearChurn(full)
		refused, full = t.isFull(k)
	}
	if full {
		t.refuse(refused, 1)
		return Ref{}, false
	}
	switch v := t.account.reserveFor(payer, t.columns.costOf(k).Add(t.devices.costOf(k))); {
	case v == ledger.NoRoom && !last:
		return Ref{}, true
	case v != ledger.Granted:
		t.refuse(RefusedSeries, 1)
		return Ref{}, false
	}
	id := t.columns.add(k)
	if k.Device != "" {
		t.devices.addSeries(k, id)
	}
	t.account.paid.add(id, payer)
	return t.columns.touch(id), false
}

func (t *Target) lookup(k *Key) (id uint32, ok bool) {
	if k.Device == "" {
		id, ok = t.columns.metrics.entries[k.Metric]
		return id, ok
	}
	return t.devices.lookup(k)
}

// isFull reports whether a limit of one target refuses a new series, and which one.
func (t *Target) isFull(k *Key) (Refused, bool) {
	if t.columns.live >= MaxSeries {
		return RefusedSeries, true
	}
	return t.devices.isFull(k)
}

// Append stores the values of one scrape with the time of their collection. It
// returns the number of invalid Refs in the batch; the caller interns their keys
// again. It returns ErrRepeated, ErrDropped or ErrNoMemory if nothing was stored. A
// timestamp of 5 s or more before the newest means that the target's clock was set
// back: the window is emptied and starts again.
func (t *Target) Append(at time.Time, b *Batch) (unknown int, err error) {
	t.store.attempt(func(last bool) (blocked bool) {
		unknown, blocked, err = t.append(at.UnixNano(), b, last)
		return blocked
	})
	return unknown, err
}

// append is Append. If other targets must free memory first, it stores nothing and
// returns blocked; on the last attempt, it overwrites the oldest slot instead.
func (t *Target) append(stamp int64, b *Batch, last bool) (unknown int, blocked bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed != nil {
		return 0, false, t.closed
	}
	c := &t.columns
	if newest, ok := c.ring.Newest(); ok && stamp <= newest {
		if newest-stamp < int64(rewindAfter) {
			t.store.repeated.Add(1)
			return 0, false, ErrRepeated
		}
		t.rewind(stamp)
	}
	if blocked := t.makeRoom(stamp); blocked && !last {
		return 0, true, nil
	}
	if c.ring.Slots() == 0 {
		return 0, false, ErrNoMemory
	}
	c.ring.Advance(stamp)
	t.facts.newest.Store(stamp)
	stored, unknown, widened := c.fill(b, stamp, t.widen)
	if widened {
		t.settle()
	}
	t.store.samples.Add(int64(stored))
	t.store.unknown.Add(uint64(unknown))
	t.devices.trackIdle(c, stamp, int64(t.Keep(gpu.MaxAge(t.store.cfg.Interval))))
	t.unlimit(stamp)
	return unknown, false, nil
}

// widen makes the column of a series wider. If the memory limit has no room for that, the
// target's window becomes shorter. It returns false if the window cannot be shorter.
func (t *Target) widen(id uint32) bool {
	r := &t.columns.ring
	if t.account.reserve(r.CostOfColumn(ring.Narrow)) != ledger.Granted {
		slots := r.SlotsWidened()
		if slots < minSlots {
			t.refuse(RefusedHistory, 1)
			return false
		}
		t.shorten(slots)
	}
	s := &t.columns.series[id]
	s.column = r.Widen(s.column)
	return true
}

// rewind empties the window of a target whose clock was set back to stamp. The
// devices keep their owners, from the new time on.
func (t *Target) rewind(stamp int64) {
	t.store.rewound.Add(1)
	t.swept, t.cleared, t.limits.last = stamp, 0, 0
	t.columns.rewind()
	t.devices.rewind(stamp)
	t.holdings.rewind(stamp)
	t.exposed.rewind(stamp)
	t.failures.Clear()
	t.settle()
	t.store.changed.add(t)
}

// makeRoom prepares the ring for a new slot. It grows a full ring that is shorter
// than Span; otherwise the oldest slot will be overwritten. Once per Span, it sweeps
// series without values. It returns true if the ring could grow after other targets
// free memory.
func (t *Target) makeRoom(stamp int64) (blocked bool) {
	cfg, r := &t.store.cfg, &t.columns.ring
	if t.swept == 0 {
		t.swept = stamp
	} else if stamp-t.swept > int64(cfg.Span) {
		t.swept = stamp
		t.sweep(math.MinInt64)
		t.settle()
	}
	if !r.Full() {
		return false
	}
	oldest, filled := r.Oldest()
	most := cfg.slots()
	if filled && stamp-oldest > int64(cfg.Span) || r.Slots() >= most {
		t.limits.short = false
		return false
	}
	defer t.settle()
	have := r.Slots()
	for want := min(max(minSlots, have+ring.BlockSlots), most); want > have; want -= max(1, want/8) {
		switch t.account.reserve(r.CostWith(want)) {
		case ledger.Granted:
			r.Resize(want)
			return false
		case ledger.NoRoom:
			blocked = true
		}
		if want-have <= want/8 {
			break
		}
	}
	t.limits.short = true
	t.limit()
	return blocked
}

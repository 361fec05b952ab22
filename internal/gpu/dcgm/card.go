// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// xidKeepSeconds is how long DCGM keeps XID samples for us: far longer than
// the time between two reads, which is all that is needed. There is one sample
// for each error, so their number needs no limit.
const xidKeepSeconds = 60

// xidRoom is how many samples one read takes; the next takes the rest.
const xidRoom = 64

// card is the state that a GPU and its MIG instances share.
type card struct {
	id   uint // DCGM's
	uuid string
	ses  *session

	polled  atomic.Int64      // when XIDs were last asked for, in Unix nanoseconds; 0: never
	mu      sync.Mutex        // guards what follows, up to healthWatch
	ready   bool              // XIDs are watched
	watched vendorlib.Refusal // recorded at each attempt to watch XIDs
	group   group
	set     fieldSet
	since   int64   // the first time to read next, in Unix microseconds of the host engine's clock
	room    []value // for samples

	profiling   map[gpu.FieldID]bool // the fields that the GPU gives; nil: not known
	probed      vendorlib.Refusal    // recorded at each attempt to list them
	healthWatch healthWatch

	reason atomic.Pointer[string] // why the GPU gives no profiling fields; nil: it does, or not known yet
}

// pollXIDs counts the XID errors since the last call. It returns at once if
// another device of the card polls now. It reports whether XIDs are watched.
func (c *card) pollXIDs(now time.Time) (bool, error) {
	if !c.mu.TryLock() {
		return true, nil
	}
	defer c.mu.Unlock()
	c.polled.Store(now.UnixNano())
	if !c.ready {
		if c.watched.Holds(now) {
			return false, nil
		}
		c.watched.Record(now)
		if err := c.watchXIDs(); err != nil {
			return false, err
		}
	}
	values, err := c.ses.engine.since(c.group, c.set, c.since, c.room)
	if err != nil {
		return false, err
	}
	for i := range values {
		v := &values[i]
		c.since = max(c.since, int64(v.ts)+1)
		x := decode(byte(v._type), int(v.status), uint64(v.word))
		switch {
		case !x.ok || !gpu.IsXID(x.number.Float):
		case c.ready:
			c.ses.xids.Add(c.uuid, uint64(x.number.Float), time.UnixMicro(int64(v.ts)))
		default:
			c.ses.xids.Seed(c.uuid, uint64(x.number.Float), time.UnixMicro(int64(v.ts))) // older than our watch
		}
	}
	c.ready = true
	return true, nil
}

// pollIfUnread starts pollXIDs if no read has done it for two intervals: a hung read of
// the GPU must not hide an error that DCGM knows.
func (c *card) pollIfUnread(now time.Time) {
	before := c.polled.Load()
	if before == 0 || now.UnixNano()-before < int64(2*c.ses.cfg.Interval) || c.ses.Broken() || !c.polled.CompareAndSwap(before, now.UnixNano()) {
		return
	}
	if !c.ses.Enter() {
		return
	}
	go func() {
		defer c.ses.Leave()
		_, _ = c.pollXIDs(now) // a later read returns the error
	}()
}

func (c *card) watchXIDs() error {
	g, err := c.ses.engine.group(fmt.Sprintf("gpupilot-xids-%d", c.id), entity{kindGPU, c.id})
	if err != nil {
		return err
	}
	set, err := c.ses.engine.watch(g, fmt.Sprintf("gpupilot-xids-%d", c.id), []gpu.FieldID{gpu.XIDErrors},
		c.ses.cfg.Interval.Microseconds(), keep{seconds: xidKeepSeconds})
	if err != nil {
		c.ses.ungroup(g)
		return fmt.Errorf("watch XIDs: %w", err)
	}
	c.group, c.set, c.since, c.room = g, set, 0, make([]value, xidRoom)
	return nil
}

// profiles reports whether the GPU gives a profiling field. GPUs of one node
// differ, so each is asked. A GPU that gives none is asked again later: another
// profiler may use it now, or the engine may lack the permission.
func (c *card) profiles(id gpu.FieldID, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.profiling == nil && !c.probed.Holds(now) {
		c.probed.Record(now)
		c.probe()
	}
	return c.profiling[id]
}

func (c *card) probe() {
	fields, err := c.ses.engine.profiling(c.id)
	if err != nil {
		reason := err.Error()
		if before := c.reason.Swap(&reason); before == nil || *before != reason {
			c.ses.log.Warn("GPU gives no profiling fields", "gpu", c.id, "uuid", c.uuid, "reason", reason)
		}
		return
	}
	c.reason.Store(nil)
	c.profiling = fields
}

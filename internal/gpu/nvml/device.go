// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// retryUnsupported is how long a "not supported" is taken for granted. It can
// change while the driver stays: a setting, or a permission. It is less than a
// minute by more than a tick of 10 s.
const retryUnsupported = 45 * time.Second

// hungAfter is how long a read may take before enumeration leaves the GPU
// alone: a whole read takes milliseconds.
const hungAfter = time.Second

// device is what is known of one GPU or MIG instance during a session.
type device struct {
	gpu.Device
	ses    *session
	handle nvml.Device // of the GPU or of the MIG instance
	root   nvml.Device // of the whole GPU
	whole  *device     // of a MIG instance: its GPU

	began  atomic.Int64 // when the read in progress began, in Unix nanoseconds; 0: none
	mu     sync.Mutex   // held by Read, which the caller does not call twice at once anyway
	now    time.Time    // of the read in progress
	out    sink
	votes  votes
	called uint64 // the probes called in this read, a bit each
	ailing bool   // the last read found the GPU lost

	retry  []time.Time // by probe: not before
	fields fieldState
	gpm    gpmState
	links  linkState
	loan   loan
	labels map[gpu.FieldID]cachedLabel
	procs  processState
}

func newDevice(s *session, id gpu.Device, handle, root nvml.Device) *device {
	return &device{
		Device: id, ses: s, handle: handle, root: root,
		retry: make([]time.Time, len(s.probes)), labels: map[gpu.FieldID]cachedLabel{},
	}
}

// sink takes the values of one read and lets only wanted ones through.
type sink struct {
	v    *gpu.Values
	want gpu.FieldSet
}

func (o *sink) set(id gpu.FieldID, x float64) {
	if o.want.HasID(id) {
		o.v.Set(id, x)
	}
}

// setNumber sets a number times scale, exactly where it stays a whole one. One
// of more than 63 bits is no value.
func (o *sink) setNumber(id gpu.FieldID, n gpu.Number, scale float64) {
	switch {
	case !o.want.HasID(id):
	case n.Float >= math.MaxInt64:
		o.v.SetNone()
	case n.Whole && scale == 1:
		o.v.SetInt(id, n.Int)
	default:
		o.v.Set(id, n.Float*scale)
	}
}

// lacks says whether one of the fields is wanted and has no value yet.
func (o *sink) lacks(fields *gpu.FieldSet) bool {
	have := o.v.Fields()
	for i := range fields {
		if fields[i]&o.want[i]&^have[i] != 0 {
			return true
		}
	}
	return false
}

// votes is what the calls of one read said of the GPU as a whole. One call
// alone proves nothing: on a lost GPU some still succeed, and on a healthy one
// some fail oddly.
type votes struct {
	good    int // basic calls that succeeded
	lost    int // calls that said that the GPU is lost
	unknown int // basic calls that failed without a reason
	invalid int // basic calls that did not know the handle
}

// read fills v. What is in v after an error is of no use.
func (d *device) read(want gpu.FieldSet, v *gpu.Values) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now = time.Now()
	d.began.Store(d.now.UnixNano())
	defer d.began.Store(0)
	d.out = sink{v, want}
	d.votes = votes{}
	d.called = 0
	err := d.walk()
	if err == nil {
		err = d.judge()
	}
	d.out = sink{}
	if err != nil {
		d.forget()
		return err
	}
	if d.ailing {
		d.ailing = false
		d.ses.events.renew()
	}
	return d.borrow(want, v)
}

// hung says whether a read has been in the library for too long.
func (d *device) hung(now time.Time) bool {
	began := d.began.Load()
	return began != 0 && now.UnixNano()-began > int64(hungAfter)
}

// forget drops what must not be compared with readings after a failure.
func (d *device) forget() {
	d.ailing = true
	d.fields.forget()
	d.gpm.forget()
}

// walk calls the probes that give what is wanted, in the table's order: what
// one gave, a later one is not asked for.
func (d *device) walk() error {
	for i := range d.ses.probes {
		p := &d.ses.probes[i]
		if d.MIG != nil && !p.mig || !d.out.lacks(&p.fields) || d.now.Before(d.retry[i]) {
			continue
		}
		if err := d.call(i); err != nil {
			return err
		}
	}
	if d.out.want.HasID(gpu.XIDErrors) && d.ses.events.registered(d.root) {
		d.out.set(gpu.XIDErrors, float64(d.ses.events.xids.Last(d.UUID)))
	}
	d.readLabels()
	return nil
}

// call calls one probe and weighs what it returned. An error ends the read.
func (d *device) call(i int) error {
	p := &d.ses.probes[i]
	d.called |= 1 << i
	ret := p.read(d)
	switch classify(ret) {
	case good:
		if p.basic {
			d.votes.good++
		}
	case unsupported:
		d.retry[i] = d.now.Add(retryUnsupported)
	case lost:
		if d.votes.lost++; d.votes.lost > 1 {
			return d.lost(ret)
		}
	case gone:
		d.ses.broken.Store(true)
		return fmt.Errorf("%w: %s", gpu.ErrNoDriver, reason(ret))
	case invalid:
		if p.basic {
			d.votes.invalid++
		} else {
			d.retry[i] = d.now.Add(retryUnsupported)
		}
	case passing:
		if p.basic {
			d.votes.unknown++
		}
	}
	return nil
}

func (d *device) lost(ret nvml.Return) error {
	return fmt.Errorf("%w: %s", gpu.ErrLost, reason(ret))
}

// judge decides whether the GPU lives. Where the calls for wanted fields leave
// that open, it makes more of the basic calls; their values are not kept.
func (d *device) judge() error {
	d.out.want = gpu.FieldSet{}
	for i := range d.ses.probes {
		if d.votes.good > 0 && d.votes.lost == 0 {
			return nil
		}
		p := &d.ses.probes[i]
		if !p.basic || d.called&(1<<i) != 0 || d.MIG != nil && !p.mig || d.now.Before(d.retry[i]) {
			continue
		}
		if err := d.call(i); err != nil {
			return err
		}
	}
	switch n := d.votes; {
	case n.good > 0:
		return nil
	case n.lost > 0:
		return d.lost(nvml.ERROR_GPU_IS_LOST)
	case n.unknown > 1:
		return d.lost(nvml.ERROR_UNKNOWN)
	case n.invalid > 0:
		return fmt.Errorf("%w: %s: its handle is stale", gpu.ErrUnknownDevice, d.UUID)
	}
	return nil
}

// release frees what the library holds for the device. It leaves a device that
// is being read alone: a hung read may still use it.
func (d *device) release() {
	if d.mu.TryLock() {
		defer d.mu.Unlock()
		d.gpm.free()
	}
}

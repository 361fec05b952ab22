// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"fmt"
	"math"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// hungAfter is how long a read may take before enumeration leaves the GPU out
// of its calls: a whole read takes milliseconds.
const hungAfter = time.Second

// device is the state of one GPU or MIG instance during a session.
type device struct {
	gpu.Device
	vendorlib.Guard // of what follows up to labels
	ses             *session
	handle          nvml.Device // of the GPU or of the MIG instance
	root            nvml.Device // of the whole GPU
	whole           *device     // a MIG instance's GPU; nil for a GPU

	now    time.Time // when the read in progress began
	out    sink
	votes  votes
	called uint64 // the probes called in this read, one bit each
	failed bool   // the last read failed

	refused []vendorlib.Refusal // by probe
	fields  fieldState
	passed  passedState
	gpm     gpmState
	loan    loan
	labels  vendorlib.Labels

	links linkState
	procs processState
}

func newDevice(s *session, id gpu.Device, handle, root nvml.Device) *device {
	return &device{
		Device: id, ses: s, handle: handle, root: root, refused: make([]vendorlib.Refusal, len(s.probes)),
	}
}

// Identity returns which device this is.
func (d *device) Identity() gpu.Device { return d.Device }

// Session returns the session to which the device belongs.
func (d *device) Session() *session { return d.ses }

// sink takes the values of one read and keeps only the wanted ones.
type sink struct {
	v    *gpu.Values
	want gpu.FieldSet
}

func (o *sink) set(id gpu.FieldID, x float64) {
	if o.want.HasID(id) {
		o.v.Set(id, x)
	}
}

// setNumber sets a number times scale. A whole number stays exact if scale is 1.
// A number of more than 63 bits is not a value.
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

// lacks reports whether one of the fields is wanted and has no value yet.
func (o *sink) lacks(fields *gpu.FieldSet) bool {
	have := o.v.Fields()
	for i := range fields {
		if fields[i]&o.want[i]&^have[i] != 0 {
			return true
		}
	}
	return false
}

// votes counts the calls of one read by what they say about the GPU as a whole.
// One call alone proves nothing: some calls succeed on a lost GPU, and some fail
// with odd codes on a healthy one.
type votes struct {
	good    int // basic calls that succeeded
	lost    int // calls that returned that the GPU is lost
	unknown int // basic calls that failed without a reason
	invalid int // basic calls that returned that the handle is invalid
}

// Read fills v with the wanted fields. After an error, v is not used.
func (d *device) Read(want gpu.FieldSet, v *gpu.Values) error {
	now := time.Now()
	if !d.Begin(now) {
		return fmt.Errorf("%w: %s", gpu.ErrUnknownDevice, d.UUID)
	}
	defer d.End()
	if want.Empty() && !d.ses.passes() {
		return nil
	}
	d.now = now
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
	if d.failed {
		d.failed = false
		d.ses.events.renew()
	}
	return d.borrow(want, v)
}

// forget drops the counters and samples that must not be compared with those
// after a failure.
func (d *device) forget() {
	d.failed = true
	d.fields.forget()
	d.gpm.forget()
}

// walk calls the probes of the wanted fields, in the table's order. It skips a
// probe whose wanted fields all have values already.
func (d *device) walk() error {
	for i := range d.ses.probes {
		p := &d.ses.probes[i]
		if d.MIG != nil && !p.mig || !d.out.lacks(&p.fields) || d.refused[i].Holds(d.now) {
			continue
		}
		if err := d.call(i); err != nil {
			return err
		}
	}
	if d.out.want.HasID(gpu.XIDErrors) && d.ses.events.registered(d.root) {
		d.out.set(gpu.XIDErrors, float64(d.lastXID()))
	}
	if d.MIG == nil && d.ses.passes() {
		d.readPassed()
	}
	d.readLabels()
	d.readIdentity()
	return nil
}

// lastXID returns the code of the last XID error. Those of a GPU as a whole are also its
// instances'.
func (d *device) lastXID() uint64 {
	if d.whole != nil {
		return d.ses.events.xids.Last(d.UUID, d.whole.UUID)
	}
	return d.ses.events.xids.Last(d.UUID)
}

// call calls one probe and counts its return code. An error ends the read.
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
		d.refused[i].Record(d.now)
	case lost:
		if d.votes.lost++; d.votes.lost > 1 {
			return d.lost(ret)
		}
	case gone:
		d.ses.Break()
		return noDriver(ret)
	case invalid:
		if p.basic {
			d.votes.invalid++
		} else {
			d.refused[i].Record(d.now)
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

// judge decides whether the GPU works. If the calls for wanted fields do not
// decide that, it makes more of the basic calls and drops their values.
func (d *device) judge() error {
	d.out.want = gpu.FieldSet{}
	for i := range d.ses.probes {
		if d.votes.good > 0 && d.votes.lost == 0 {
			return nil
		}
		p := &d.ses.probes[i]
		if !p.basic || d.called&(1<<i) != 0 || d.MIG != nil && !p.mig || d.refused[i].Holds(d.now) {
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

// Release frees the GPM samples.
func (d *device) Release(*session) { d.Guard.Release(d.gpm.free) }

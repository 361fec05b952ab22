// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"math"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/loadgen/cuda"
)

// whole is a share of 1 in the kernels' parameters.
const whole = 65536

// paramCount is how many parameters every kernel has.
const paramCount = 8

// slots is how many slices of a load are known at a time: two in flight, and the one before.
const slots = 3

// kernelWork makes a load with a kernel. Each slice is one launch.
type kernelWork struct {
	kind     Kind
	model    model
	function cuda.Function
	kernel   kernel
	stream   cuda.Stream
	window   time.Duration
	alone    bool // no other load runs: blocks may take an SM's shared memory

	data       cuda.Memory
	size, arg  uint64 // p_bytes, p_arg
	maxBlocks  int
	perSM      int     // blocks on each SM, of a pipe
	perChunk   float64 // multiply-adds or bytes of a warp's chunk
	slot       [slots]kernelSlot
	sharedFree int // dynamic shared memory that keeps blocks apart
}

type kernelSlot struct {
	memory cuda.Memory
	host   []byte
	event  cuda.Event
	blocks int
	length time.Duration
}

// variant names the kernel where there are several.
func (w *kernelWork) variant() string {
	if w.kind.Field != gpu.TensorActive {
		return ""
	}
	for _, m := range mmas {
		if w.kernel.Target == m.target {
			return m.name
		}
	}
	return ""
}

// prepare allocates the records and, where blocks must not share an SM, asks for the shared memory that prevents it.
func (w *kernelWork) prepare(c *cuda.Context) (err error) {
	if w.alone && w.perSM == 1 && w.model.shared > 0 && w.model.sharedPerSM > 0 {
		w.sharedFree = min(w.model.shared, w.model.sharedPerSM/2+1024)
		if err := w.function.AllowShared(w.sharedFree); err != nil {
			return err
		}
	}
	if w.stream, err = c.NewStream(); err != nil {
		return err
	}
	if w.kind.Field == gpu.DRAMActive {
		ended, err := c.Alloc(8 * uint64(w.maxBlocks))
		if err != nil {
			return err
		}
		w.arg = ended.Address
		if err := w.stream.Zero(ended, ended.Bytes); err != nil {
			return err
		}
	}
	for i := range w.slot {
		s := &w.slot[i]
		if s.memory, err = c.Alloc(recordBytes(w.maxBlocks)); err != nil {
			return err
		}
		if s.host, err = c.HostAlloc(recordBytes(w.maxBlocks)); err != nil {
			return err
		}
		if s.event, err = c.NewEvent(); err != nil {
			return err
		}
	}
	return nil
}

// launch is the size of a launch, and how long it takes.
type launch struct {
	blocks, threads int
	length          time.Duration // from the first block's start
	last, duty      uint64        // of whole
}

// plan is the launch that makes a duty of a slice.
func (w *kernelWork) plan(length time.Duration, duty float64) launch {
	duty = min(1, max(0, duty))
	l := launch{blocks: w.maxBlocks, threads: w.kernel.threads, length: length, last: whole, duty: whole}
	switch w.kind.Field {
	case gpu.GREngineActive: // a gap after the kernel
		l.length = time.Duration(duty * float64(length))
	case gpu.SMActive, gpu.SMOccupancy: // fewer blocks, the last one for a part of the slice
		units := duty * float64(w.maxBlocks)
		l.blocks = max(1, int(math.Ceil(units)))
		l.last = uint64((units - float64(l.blocks-1)) * whole)
		if l.blocks == 1 {
			l.length, l.last = time.Duration(units*float64(length)), whole
		}
	default: // a part of each window
		l.duty = uint64(duty * whole)
	}
	return l
}

// start queues a slice. It returns how long the slice's kernel runs.
func (w *kernelWork) start(slot int, length time.Duration, duty float64) (time.Duration, error) {
	s, l := &w.slot[slot], w.plan(length, duty)
	s.blocks, s.length = l.blocks, length
	area := recordBytes(l.blocks)
	if err := w.stream.Zero(s.memory, area); err != nil {
		return 0, err
	}
	window := w.window
	if w.kind.Field == gpu.GREngineActive {
		window = length
	}
	params := [paramCount]uint64{s.memory.Address, uint64(l.length), l.last, uint64(window), l.duty, w.data.Address, w.size, w.arg}
	size := cuda.Launch{Blocks: l.blocks, Threads: l.threads, SharedBytes: w.sharedFree}
	if err := w.function.Launch(size, w.stream, params[:]); err != nil {
		return 0, err
	}
	if err := w.stream.ToHost(s.host[:area], s.memory); err != nil {
		return 0, err
	}
	return l.length, s.event.Record(w.stream)
}

// finish waits for a slice and reads its records.
func (w *kernelWork) finish(slot int) (measured, error) {
	s := &w.slot[slot]
	if err := s.event.Wait(); err != nil {
		return measured{}, err
	}
	list := blocks(s.host[:recordBytes(s.blocks)])
	if len(list) == 0 {
		return measured{}, fmt.Errorf("kernel %s: no block of %d wrote its record", w.kernel.Name, s.blocks)
	}
	sum := summarize(list)
	m := sum.measured
	m.busy = w.busy(sum)
	m.work *= w.perChunk
	return m, nil
}

// busy is the time in which the device did what the kind is about.
func (w *kernelWork) busy(s summary) float64 {
	switch w.kind.Field {
	case gpu.GREngineActive:
		return s.end - s.first
	case gpu.SMActive:
		return s.smNS / float64(w.model.sms)
	case gpu.SMOccupancy:
		return s.warpNS / float64(w.model.sms*w.model.warpsPerSM)
	}
	return s.worked / s.warps
}

// generated is what the field should show for the sums of a step, its half-width, the rate in the kind's unit and its
// share of the peak.
func (w *kernelWork) generated(t totals, timerStep float64) (value *float64, half float64, rate, share *float64) {
	edges := (2*timerStep + launchNS) / float64(slice)
	if w.kind.RateUnit == "" {
		return ptr(t.busy / t.wall), edges, nil, nil
	}
	perSecond := t.work / (t.wall / 1e9)
	if w.kind.Field == gpu.DRAMActive {
		rate, value = ptr(perSecond/1e9), ratio(perSecond, w.model.memoryBytesPerSecond)
		share = value
	} else {
		rate = ptr(2 * perSecond / 1e12)
		peak, busy := w.model.fmaPerCycle(w.kind.Field)
		cycles := float64(w.model.sms) * t.hertz()
		share, value = ratio(perSecond, peak*cycles), ratio(perSecond, busy*cycles)
	}
	if value == nil {
		return nil, 0, rate, share
	}
	return value, *value * (edges + t.hertzSpread), rate, share
}

// launchNS is the part of a kernel's time that its blocks do not see: its start and its end, in ns.
const launchNS = 10_000

func ptr(v float64) *float64 { return &v }

// ratio is a/b; nil if b is not known.
func ratio(a, b float64) *float64 {
	if b <= 0 {
		return nil
	}
	return ptr(a / b)
}

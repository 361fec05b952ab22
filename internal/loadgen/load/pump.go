// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"time"
)

// work makes slices of a load on a device.
type work interface {
	// start queues a slice of a length in a free slot, and returns how long the device works on it.
	start(slot int, length time.Duration, duty float64) (time.Duration, error)
	// finish waits for the slice in a slot and measures it.
	finish(slot int) (measured, error)
	// generated is what a step's sums mean: the field's value, its half-width, the rate and its share of the peak. nil is
	// not known.
	generated(t totals, timerStep float64) (value *float64, half float64, rate, share *float64)
	variant() string
}

// Clock is the time of the host. A fake device has a clock of its own.
type Clock interface {
	Now() time.Time
	// SleepUntil waits for a moment, at most a slice away.
	SleepUntil(t time.Time)
}

// totals are the sums of a step.
type totals struct {
	wall, busy, asked, work float64 // ns; asked is the shape's busy time
	cycles, clockNS         float64
	hertzSpread             float64
	start                   time.Time
	slices                  int
}

func (t totals) hertz() float64 {
	if t.clockNS == 0 {
		return 0
	}
	return t.cycles / t.clockNS * 1e9
}

// flight is a slice that was started.
type flight struct {
	slot, step int
	length     time.Duration
	duty       float64 // of the shape
	gap        bool    // the device idles after it
	measured
}

// pump runs one kind of load: slice after slice, two in flight, or one where the device idles in between.
type pump struct {
	work  work
	clock Clock
	shape Shape
	limit time.Duration // of the whole load
	every time.Duration // of a step
	emit  func(step int, t totals) error

	flying []flight
	before *flight // the last measured slice, whose wall time is not known yet
	next   time.Duration
	slot   int
	origin float64 // device time of the load's start
	offset float64 // host minus device, ns since base; +Inf at first
	base   time.Time
	debt   float64 // ns that the device worked too little
	step   int
	sums   totals
}

// The shortest slice: a rest of a step that is shorter belongs to the next step. The shortest gap: a shorter one is not
// worth waiting for.
const (
	leastSlice = time.Millisecond
	leastGap   = 150 * time.Microsecond
)

// run runs the load until its end or until ctx is done, and emits its steps. It leaves nothing running.
func (p *pump) run(ctx context.Context) error {
	p.base = p.clock.Now()
	for ctx.Err() == nil {
		if len(p.flying) == 2 {
			if err := p.collect(); err != nil {
				return err
			}
		}
		if p.limit-p.next < leastSlice { // collect moves next
			break
		}
		if err := p.launch(); err != nil {
			return err
		}
	}
	for len(p.flying) > 0 {
		if err := p.collect(); err != nil {
			return err
		}
	}
	if p.before != nil {
		if err := p.add(*p.before, max(float64(p.before.length), p.before.end-p.before.first)); err != nil {
			return err
		}
	}
	return p.flush()
}

// launch starts the next slice and, if the device idles after it, waits until its end.
func (p *pump) launch() error {
	step := int(p.next / p.every)
	rest := min(p.limit, time.Duration(step+1)*p.every) - p.next
	if rest < leastSlice {
		step++
		rest = min(p.limit-p.next, p.every)
	}
	f := flight{slot: p.slot, step: step, length: min(slice, rest)}
	f.duty = p.shape.Mean(p.next, p.next+f.length)
	length, err := p.work.start(f.slot, f.length, f.duty+p.correction(f.duty, f.length))
	if err != nil {
		return err
	}
	p.slot = (p.slot + 1) % slots
	p.next += f.length
	f.gap = f.length-length > leastGap
	p.flying = append(p.flying, f)
	if !f.gap {
		return nil
	}
	for len(p.flying) > 0 {
		if err := p.collect(); err != nil {
			return err
		}
	}
	p.clock.SleepUntil(p.hostTime(p.before.first + float64(f.length)))
	return nil
}

// gain is the part of the debt that the next slice pays: two more are in flight that do not know of it.
const gain = 0.3

// correction is added to the duty of the next slice, so that delays of the host do not add up.
func (p *pump) correction(duty float64, length time.Duration) float64 {
	if duty <= 0 || duty >= 1 {
		return 0
	}
	if len(p.flying) == 0 {
		return p.debt / float64(length)
	}
	return gain * p.debt / float64(length)
}

// collect measures the oldest slice in flight.
func (p *pump) collect() error {
	f := p.flying[0]
	p.flying = p.flying[1:]
	var err error
	if f.measured, err = p.work.finish(f.slot); err != nil {
		return err
	}
	offset := float64(p.clock.Now().Sub(p.base)) - f.end
	if p.origin == 0 {
		p.origin, p.offset = f.first, offset
	}
	p.offset = min(p.offset, offset)
	if p.before != nil {
		if err := p.add(*p.before, f.first-p.before.first); err != nil {
			return err
		}
	}
	p.pay(f.duty*float64(f.length) - f.busy)
	p.before = &f
	// The plan follows the device's time.
	p.next = time.Duration(f.first-p.origin) + f.length
	for _, other := range p.flying {
		p.next += other.length
	}
	return nil
}

// pay adds to the debt, within a slice.
func (p *pump) pay(ns float64) {
	p.debt = min(float64(slice), max(-float64(slice), p.debt+ns))
}

// hostTime is the host's time at a moment of the device.
func (p *pump) hostTime(device float64) time.Time {
	return p.base.Add(time.Duration(device + p.offset))
}

// add adds a slice, with the time until the next one, to its step.
func (p *pump) add(f flight, wall float64) error {
	p.pay(f.duty * (wall - float64(f.length)))
	if f.step != p.step || p.sums.slices == 0 {
		if err := p.flush(); err != nil {
			return err
		}
		p.step = f.step
		p.sums.start = p.hostTime(f.first)
	}
	s := &p.sums
	s.slices++
	s.wall += wall
	s.busy += f.busy
	s.asked += f.duty * wall
	s.work += f.work
	if f.hertz > 0 {
		s.cycles += f.hertz * (f.end - f.first) / 1e9
		s.clockNS += f.end - f.first
		s.hertzSpread = max(s.hertzSpread, f.hertzSpread)
	}
	return nil
}

// flush emits the step that was added up.
func (p *pump) flush() error {
	sums := p.sums
	p.sums = totals{}
	if sums.slices == 0 {
		return nil
	}
	return p.emit(p.step, sums)
}

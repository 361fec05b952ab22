// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// partReads are the reads of NvSwitches, NVLinks and CPUs. They have their own
// goroutine: a hang there does not affect the GPUs.
type partReads struct {
	reader  gpu.PartReader // nil: the backend reads no parts
	answers chan partsRead
	asked   time.Time
	busy    bool // a read is pending
	took    time.Duration
	missing bool // that the backend reads no parts has been logged

	list []gpu.PartSnapshot
	at   time.Time // of the last read
	err  error     // why the last read failed
}

// partsRead is the result of one read of the parts.
type partsRead struct {
	list  []gpu.PartSnapshot
	asked time.Time
	took  time.Duration
	err   error
}

// askParts starts a read of the parts if one of their fields is wanted. It
// reports whether to wait for it.
func (l *loop) askParts(now time.Time, want gpu.FieldSet) bool {
	p := &l.parts
	want = want.Intersect(gpu.AllPartFields())
	switch {
	case want.Empty() && (p.reader == nil || !l.passes.Load()):
		p.list, p.at, p.err = nil, time.Time{}, nil
		return false
	case p.reader == nil:
		if !p.missing {
			p.missing = true
			l.deps.Log.Warn("NvSwitches, NVLinks and CPUs are not collected: only the DCGM backend reads them", "backend", l.deps.Reader.Backend())
		}
		return false
	case p.busy:
		return false
	}
	p.busy, p.asked = true, now
	go func() {
		start := time.Now()
		list, err := p.reader.ReadParts(want, l.cfg.keepPart)
		p.answers <- partsRead{list, now, time.Since(start), err} // buffered
	}()
	return p.took <= l.patience()
}

// partsAnswered handles a read's result, which can have both parts and an
// error.
func (l *loop) partsAnswered(r partsRead) {
	p := &l.parts
	was := p.err
	p.busy, p.took, p.err = false, r.took, r.err
	if r.err == nil || len(r.list) > 0 {
		p.at = r.asked
	}
	p.list = l.known(r)
	l.collectors.done(ofParts, r.asked, r.took, r.err)
	if r.err != nil {
		l.errors++
	}
	switch {
	case was == nil && r.err != nil:
		l.deps.Log.Warn("not all NvSwitches, NVLinks and CPUs can be read", "err", r.err)
	case was != nil && r.err == nil:
		l.deps.Log.Info("NvSwitches, NVLinks and CPUs are read again")
	}
}

// known returns the parts of a read, and those of before that it lacks, with their last
// values. A part that fails stays, as does a link that is down while its GPU is listed.
// A part that was taken away stays for keepGone.
func (l *loop) known(r partsRead) []gpu.PartSnapshot {
	for i := range r.list {
		r.list[i].Collected = r.asked
	}
	for _, old := range l.parts.list {
		if slices.ContainsFunc(r.list, func(p gpu.PartSnapshot) bool { return isSamePart(&p.Part, &old.Part) }) {
			continue
		}
		stays := r.err != nil || r.asked.Sub(old.Collected) < keepGone
		if old.Kind == gpu.NVLink && old.GPU != nil {
			stays = l.lists(old.GPU.UUID)
		} else if old.Kind == gpu.NVLink {
			stays = true
		}
		if stays {
			r.list = append(r.list, old)
		}
	}
	return r.list
}

// isSamePart reports whether two readings are of one part.
func isSamePart(a, b *gpu.Part) bool {
	if a.Kind != b.Kind || a.ID != b.ID || (a.GPU == nil) != (b.GPU == nil) {
		return false
	}
	if a.GPU != nil {
		return a.GPU.UUID == b.GPU.UUID
	}
	return a.Parent == b.Parent
}

// keepPart reports whether a part is selected. A GPU's links are selected with
// the GPU.
func (c *Config) keepPart(p *gpu.Part) bool {
	switch p.Kind {
	case gpu.NVSwitch:
		return c.Switches.major(p.ID)
	case gpu.CPU:
		return c.CPUs.major(p.ID)
	case gpu.CPUCore:
		return c.CPUs.minor(p.Parent, p.ID)
	}
	if p.GPU != nil {
		return c.Devices.major(p.GPU.Index)
	}
	return c.Switches.minor(p.Parent, p.ID)
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// partReads are the reads of what is no GPU. They have a goroutine of their
// own: what hangs there hides no GPU.
type partReads struct {
	reader  gpu.PartReader // nil: the backend reads no parts
	answers chan partsRead
	asked   time.Time
	busy    bool // the last question is not answered yet
	took    time.Duration
	missing bool // it was logged that the backend reads no parts

	list []gpu.PartSnapshot
	at   time.Time // of list
	err  error     // why the last read failed
}

// partsRead is the result of one read.
type partsRead struct {
	list  []gpu.PartSnapshot
	asked time.Time
	took  time.Duration
	err   error
}

// askParts reads the parts, if any of their fields is wanted, and says whether
// it is worth waiting for.
func (l *loop) askParts(now time.Time, want gpu.FieldSet) bool {
	p := &l.parts
	want = want.Intersect(gpu.AllPartFields())
	switch {
	case want.Empty():
		p.list, p.at, p.err = nil, time.Time{}, nil
		return false
	case p.reader == nil:
		if !p.missing {
			p.missing = true
			l.deps.Log.Warn("NvSwitches, NVLinks and CPUs are not collected: that needs DCGM", "backend", l.deps.Reader.Backend())
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

// partsAnswered takes a read in. Beside an error there may be parts that could
// be read.
func (l *loop) partsAnswered(r partsRead) {
	p := &l.parts
	was := p.err
	p.busy, p.took, p.err = false, r.took, r.err
	if r.err == nil || len(r.list) > 0 {
		p.list, p.at = r.list, r.asked
	}
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

// keepPart says whether a part is selected. A GPU's links go with the GPU.
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

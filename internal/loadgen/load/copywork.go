// SPDX-License-Identifier: Apache-2.0

package load

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/loadgen/cuda"
)

// copyWork makes a load of a bus with copies. Each slice is a series of copies between two events.
type copyWork struct {
	kind   Kind
	model  model
	peak   float64 // bytes per second; 0: not known
	stream cuda.Stream
	copy   func(bytes uint64) error // queues one copy
	most   uint64                   // bytes of a copy

	bytesPerNS float64 // as the last slice had it
	slot       [slots]copySlot
	first      float64 // of the last slice, ns since the first one
	last       int     // slot of the last slice; -1: none yet
}

type copySlot struct {
	from, to cuda.Event
	bytes    float64
}

// The first guess of a copy's rate, which measure replaces, and the time of one copy, which decides its size.
const (
	guessBytesPerNS = 1
	copyNS          = 200_000
	leastCopy       = 64 << 10
)

func (w *copyWork) prepare(c *cuda.Context) (err error) {
	w.bytesPerNS, w.last = guessBytesPerNS, -1
	if w.stream, err = c.NewStream(); err != nil {
		return err
	}
	for i := range w.slot {
		if w.slot[i].from, err = c.NewEvent(); err != nil {
			return err
		}
		if w.slot[i].to, err = c.NewEvent(); err != nil {
			return err
		}
	}
	return nil
}

// measure sets the rate by one copy, so that the first slice has its length.
func (w *copyWork) measure() error {
	if _, err := w.start(0, time.Duration(float64(w.most)/guessBytesPerNS), 1); err != nil {
		return err
	}
	_, err := w.finish(0)
	w.last = -1
	return err
}

func (w *copyWork) variant() string { return "" }

func (w *copyWork) start(slot int, length time.Duration, duty float64) (time.Duration, error) {
	s := &w.slot[slot]
	s.bytes = 0
	if err := s.from.Record(w.stream); err != nil {
		return 0, err
	}
	each := min(w.most, max(leastCopy, uint64(w.bytesPerNS*copyNS)))
	want := min(1, max(0, duty)) * float64(length) * w.bytesPerNS
	for s.bytes+float64(each)/2 <= want {
		if err := w.copy(each); err != nil {
			return 0, err
		}
		s.bytes += float64(each)
	}
	return time.Duration(s.bytes / w.bytesPerNS), s.to.Record(w.stream)
}

func (w *copyWork) finish(slot int) (measured, error) {
	s := &w.slot[slot]
	if err := s.to.Wait(); err != nil {
		return measured{}, err
	}
	busy, err := s.to.Since(s.from)
	if err != nil {
		return measured{}, err
	}
	if w.last >= 0 {
		since, err := s.from.Since(w.slot[w.last].from)
		if err != nil {
			return measured{}, err
		}
		w.first += since * 1e6
	}
	w.last = slot
	if s.bytes > 0 && busy > 0 {
		w.bytesPerNS = s.bytes / (busy * 1e6)
	} else {
		busy = 0
	}
	// The first slice begins at 1: 0 is no time.
	return measured{first: w.first + 1, end: w.first + 1 + busy*1e6, busy: busy * 1e6, work: s.bytes}, nil
}

func (w *copyWork) generated(t totals, _ float64) (value *float64, half float64, rate, share *float64) {
	perSecond := t.work / (t.wall / 1e9)
	field, relative := perSecond, 0.01
	if w.kind.Field == gpu.PCIeTxBytes || w.kind.Field == gpu.PCIeRxBytes {
		field, relative = perSecond*w.model.headers(), headersError
	}
	return &field, field * relative, ptr(perSecond / 1e9), ratio(perSecond, w.peak)
}

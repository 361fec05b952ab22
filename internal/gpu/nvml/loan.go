// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"errors"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// lendFor is how long a reading of a whole GPU serves its instances. The
// instances are read at about the same time, and each would read the GPU again.
const lendFor = 50 * time.Millisecond

// loan is the last reading of a whole GPU for its instances.
type loan struct {
	mu     sync.Mutex
	at     time.Time // when it was read
	of     gpu.FieldSet
	values gpu.Values
	err    error
}

// lent returns the fields that a MIG instance takes from its GPU, as with DCGM:
// those that exist once for the board, such as temperature, power and clocks.
// An instance has its own memory, profiling fields and XIDs, and no
// utilisation.
func lent() gpu.FieldSet {
	s := gpu.AllFields().Minus(gpu.ProfilingFields())
	for i, f := range gpu.Fields() {
		if f.Kind == gpu.Label { // labels are read from the GPU anyway
			s.Remove(gpu.Index(i))
		}
	}
	return s.Minus(gpu.SetOf(gpu.GPUUtil, gpu.MemCopyUtil, gpu.EncUtil, gpu.DecUtil, gpu.XIDErrors,
		gpu.FBTotal, gpu.FBFree, gpu.FBUsed, gpu.FBReserved, gpu.FBUsedPercent))
}

// borrow adds the lent fields of its GPU, and those outside of the table, to a
// MIG instance's values.
func (d *device) borrow(want gpu.FieldSet, v *gpu.Values) error {
	want = want.Intersect(d.ses.lent).Minus(v.Fields())
	if d.whole == nil || want.Empty() && !d.ses.passes() {
		return nil
	}
	l := &d.whole.loan
	l.mu.Lock()
	defer l.mu.Unlock()
	if lacking := want.Minus(l.of); !lacking.Empty() || time.Since(l.at) > lendFor {
		l.of = want
		l.values.Reset()
		l.err = d.whole.Read(want, &l.values)
		l.at = time.Now()
	}
	if errors.Is(l.err, gpu.ErrLost) || errors.Is(l.err, gpu.ErrNoDriver) {
		return l.err
	}
	if l.err == nil {
		v.Add(&l.values, want)
	}
	return nil
}

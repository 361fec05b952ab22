// SPDX-License-Identifier: Apache-2.0

// Package auto reads GPUs through NVML. It reads the wanted fields that NVML
// does not give for a device, and NvSwitches, NVLinks and CPUs, through DCGM.
// It opens DCGM only when it needs it, because DCGM takes tens to hundreds of
// MiB. If DCGM gives none of the wanted fields, it is closed again.
package auto

import (
	"cmp"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// First is the preferred reader: NVML.
type First interface {
	gpu.Reader
	gpu.Profiler
	gpu.Explainer
	gpu.ProcessReader
	gpu.LinkReader
	gpu.TopologyReader
	gpu.Passer
	gpu.Releaser
}

// Second reads the fields that the first does not give: DCGM.
type Second interface {
	gpu.Reader
	gpu.Profiler
	gpu.PartReader
	gpu.Passer
}

// Config is the configuration of a Reader.
type Config struct {
	First First
	// Open returns the second reader; it must not block. Its argument returns
	// the UUID of a compute instance of a GPU instance, which DCGM does not
	// give.
	Open func(migUUID func(parentUUID string, gpuInstance, computeInstance int) string) Second
	// Patience is how long a read of the first reader waits for the second's.
	Patience time.Duration
	Log      *slog.Logger
}

// Reader is the gpu.Reader over both. Other methods are those of the first.
type Reader struct {
	First
	cfg  Config
	prof gpu.FieldSet

	mu      sync.Mutex
	second  *second          // nil: not needed, or closed because it was useless
	retry   time.Time        // earliest time to open it again
	again   time.Duration    // the delay before that
	why     string           // why it was useless; empty: not opened yet
	needs   map[string]*need // of devices that lack wanted fields
	parts   bool             // a field of parts is wanted
	shared  []gpu.FieldID    // fields outside of the table that only the first reads; not changed in place
	passed  []gpu.FieldID    // those that the second reads
	devices []gpu.Device     // of the first
	closed  bool

	released bool // Release was called after the last Devices
}

var (
	_ First  = (*Reader)(nil)
	_ Second = (*Reader)(nil)
)

const (
	// reopenAfter is the time until a useless second reader is opened again:
	// another profiler may have used the counters. The time doubles up to
	// reopenAtMost, because a DCGM engine takes seconds to start and does not
	// free all of its memory.
	reopenAfter  = 10 * time.Minute
	reopenAtMost = 2 * time.Hour
	// reloadAfter is the time until a missing library is looked for again,
	// which is cheap.
	reloadAfter = time.Minute
)

// New returns a reader.
func New(cfg Config) *Reader {
	cfg.Patience = cmp.Or(cfg.Patience, time.Second)
	return &Reader{First: cfg.First, cfg: cfg, prof: gpu.ProfilingFields(), needs: map[string]*need{}}
}

// Devices enumerates the first reader's devices.
func (r *Reader) Devices() ([]gpu.Device, error) {
	r.mu.Lock()
	r.released = false
	r.mu.Unlock()
	devices, err := r.First.Devices()
	if len(devices) > 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.devices = devices
		there := make(map[string]bool, len(devices))
		for i := range devices {
			there[devices[i].UUID] = true
		}
		for uuid := range r.needs {
			if !there[uuid] {
				delete(r.needs, uuid)
			}
		}
	}
	return devices, err
}

// Read reads the first reader, and then the fields that it lacks from the
// second.
func (r *Reader) Read(uuid string, want gpu.FieldSet, v *gpu.Values) error {
	shared := r.ofFirst()
	if err := r.First.Read(uuid, want, v); err != nil {
		return err
	}
	lacking := want.Minus(v.Given())
	if others := r.others(shared, v); lacking.Empty() && !others {
		return nil
	}
	if s, ask := r.need(uuid, want, lacking); s != nil {
		s.supplement(uuid, ask, lacking, v, r.cfg.Patience)
	}
	r.logSource(uuid)
	return nil
}

// Pass sets the fields outside of the table. See gpu.Passer.
func (r *Reader) Pass(ids []gpu.FieldID) []gpu.FieldID {
	others := r.First.Pass(ids)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shared = without(ids, others)
	r.passToSecond(others)
	return nil // which ones DCGM does not have shows in what Read gives
}

// passToSecond changes the fields that the second reader reads for every device and
// part. The caller holds r.mu.
func (r *Reader) passToSecond(ids []gpu.FieldID) {
	r.passed, r.retry, r.again = ids, time.Time{}, 0
	if r.second != nil {
		r.second.reader.Pass(ids)
	}
}

// ofFirst returns the fields outside of the table that only the first reader reads.
func (r *Reader) ofFirst() []gpu.FieldID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shared
}

// others reports whether the second reader reads fields outside of the table. From
// now on, it also reads those of shared that the first did not give in v; shared is
// from before that read.
func (r *Reader) others(shared []gpu.FieldID, v *gpu.Values) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lacks []gpu.FieldID
	for _, id := range shared {
		_, number := v.Passed(id)
		if _, text := v.GetLabel(id); !number && !text && slices.Contains(r.shared, id) {
			lacks = append(lacks, id)
		}
	}
	if len(lacks) > 0 {
		r.shared = without(r.shared, lacks)
		r.passToSecond(slices.Concat(r.passed, lacks))
	}
	return len(r.passed) > 0
}

// without returns a copy of ids without some of them.
func without(ids, some []gpu.FieldID) []gpu.FieldID {
	return slices.DeleteFunc(slices.Clone(ids), func(id gpu.FieldID) bool { return slices.Contains(some, id) })
}

// ReadParts reads the second reader's parts, if one of their fields or a field
// outside of the table is to be read there.
func (r *Reader) ReadParts(want gpu.FieldSet, keep func(*gpu.Part) bool) ([]gpu.PartSnapshot, error) {
	r.mu.Lock()
	if want.Empty() && len(r.passed) == 0 {
		r.mu.Unlock()
		return nil, nil
	}
	r.parts = r.parts || !want.Empty()
	s, why := r.open(), r.why
	r.mu.Unlock()
	if s == nil {
		return nil, errors.New(why)
	}
	if err := s.ready(r.cfg.Patience); err != nil {
		return nil, err
	}
	return s.reader.ReadParts(want, keep)
}

// need returns the fields to read from the second reader for a device that
// lacks wanted fields, and opens that reader. nil: read nothing now.
func (r *Reader) need(uuid string, want, lacking gpu.FieldSet) (*second, gpu.FieldSet) {
	// Fields that the first reader cannot read, and profiling fields that it
	// refuses, are needed at once. Others may come with its next read, as rates
	// do.
	reasons := r.First.Reasons(uuid)
	certain := lacking.Minus(reasons.Asked)
	if r.First.NoProfiling(uuid) != "" {
		certain = certain.Union(lacking.Intersect(r.prof))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.needs[uuid]
	if n == nil {
		n = &need{unsupported: r.unsupported(uuid)}
		r.needs[uuid] = n
	}
	if grown := n.update(want, lacking, certain, time.Now()); grown {
		r.retry, r.again = time.Time{}, 0 // it was useless for fewer fields
	}
	if useful := n.asked.Minus(n.unsupported); useful.Empty() && len(r.passed) == 0 {
		return nil, gpu.FieldSet{}
	}
	return r.open(), n.asked
}

// unsupported returns the fields for which the second reader is not opened:
// neither library gives the utilisation of a MIG instance, except as profiling
// fields.
func (r *Reader) unsupported(uuid string) gpu.FieldSet {
	for i := range r.devices {
		if r.devices[i].UUID == uuid && r.devices[i].MIG != nil {
			return gpu.SetOf(gpu.GPUUtil, gpu.MemCopyUtil, gpu.EncUtil, gpu.DecUtil)
		}
	}
	return gpu.FieldSet{}
}

// open opens the second reader unless it is open, or was useless a short time
// ago. The caller holds r.mu.
func (r *Reader) open() *second {
	if r.second == nil && !r.closed && !r.released && !time.Now().Before(r.retry) {
		reader := r.cfg.Open(r.instanceUUID)
		reader.Pass(r.passed)
		r.second = startSecond(reader, r.enumerated)
	}
	return r.second
}

// enumerated closes the second reader if it is useless: its library is missing,
// or it gives none of the needed fields.
func (r *Reader) enumerated(s *second) (stop bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.second != s { // released
		return true
	}
	why, noLibrary := s.closeReason(r.needs, r.parts || len(r.passed) > 0, r.prof)
	if why == "" {
		return r.closed
	}
	if noLibrary {
		r.again = reloadAfter
	} else {
		r.again = min(max(2*r.again, reopenAfter), reopenAtMost)
	}
	r.second, r.why, r.retry = nil, why, time.Now().Add(r.again)
	return true
}

// instanceUUID returns an instance's UUID from the first reader. A compute
// instance that spans its GPU instance has no number of its own.
func (r *Reader) instanceUUID(parent string, gpuInstance, computeInstance int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.devices {
		m := r.devices[i].MIG
		if m != nil && m.ParentUUID == parent && m.GPUInstance == gpuInstance && (m.ComputeInstance == computeInstance || m.ComputeInstance < 0) {
			return r.devices[i].UUID
		}
	}
	return ""
}

// Release releases both readers. After the next call of Devices, the second is opened again
// when it is needed. See gpu.Releaser.
func (r *Reader) Release() error {
	r.mu.Lock()
	s := r.second
	r.released = true
	r.second, r.retry, r.again = nil, time.Time{}, 0
	r.mu.Unlock()
	var err error
	if s != nil && !s.close() {
		err = errors.New("calls still hang in DCGM")
	}
	return errors.Join(err, r.First.Release())
}

// Close closes both readers.
func (r *Reader) Close() error {
	r.mu.Lock()
	r.closed = true
	s := r.second
	r.mu.Unlock()
	if s != nil {
		s.close()
	}
	return r.First.Close()
}

// SPDX-License-Identifier: Apache-2.0

// Package auto reads GPUs through NVML, and asks DCGM for every wanted field that
// NVML does not give for a device, and for NvSwitches, NVLinks and CPUs. DCGM is
// opened when something needs it, and not before: it takes tens to hundreds of
// MiB. Where it gives nothing that is wanted, it is closed again.
package auto

import (
	"cmp"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// First is the reader that is preferred.
type First interface {
	gpu.Reader
	gpu.Profiler
	gpu.Explainer
	gpu.ProcessReader
	gpu.LinkReader
	gpu.TopologyReader
}

// Second is the reader that is asked for what the first does not give.
type Second interface {
	gpu.Reader
	gpu.Profiler
	gpu.PartReader
}

// Config says what to read with.
type Config struct {
	First First
	// Open makes the second reader; it must not block. It is told how to learn
	// the UUID of a compute instance of a GPU instance, which DCGM does not know.
	Open func(migUUID func(parentUUID string, gpuInstance, computeInstance int) string) Second
	// Patience is how long a read of the first waits for the second's.
	Patience time.Duration
	Log      *slog.Logger
}

// Reader is the gpu.Reader over both. What is not written here is the first's.
type Reader struct {
	First
	cfg  Config
	prof gpu.FieldSet

	mu      sync.Mutex
	second  *second          // nil: nothing needed it, or it was of no use
	retry   time.Time        // not opened again before
	again   time.Duration    // how long that was
	why     string           // why it was of no use; empty: it was not opened yet
	needs   map[string]*need // of devices that lack wanted fields
	parts   bool             // parts are wanted
	devices []gpu.Device     // of the first
	closed  bool
}

var (
	_ First  = (*Reader)(nil)
	_ Second = (*Reader)(nil)
)

const (
	// reopenAfter is when a second reader that gave nothing is tried again: another
	// profiler may have had the counters. The time doubles, up to reopenAtMost: an
	// engine of DCGM's takes seconds to start, and memory that does not all come back.
	reopenAfter  = 10 * time.Minute
	reopenAtMost = 2 * time.Hour
	// reloadAfter is the same where there was no library: looking for one costs nothing.
	reloadAfter = time.Minute
)

// New makes a reader.
func New(cfg Config) *Reader {
	cfg.Patience = cmp.Or(cfg.Patience, time.Second)
	return &Reader{First: cfg.First, cfg: cfg, prof: gpu.ProfilingFields(), needs: map[string]*need{}}
}

// Devices are the first reader's.
func (r *Reader) Devices() ([]gpu.Device, error) {
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

// Read reads the first reader, and the second for the fields that the device
// does not give to the first.
func (r *Reader) Read(uuid string, want gpu.FieldSet, v *gpu.Values) error {
	if err := r.First.Read(uuid, want, v); err != nil {
		return err
	}
	lacking := want.Minus(v.Given())
	if lacking.Empty() {
		return nil
	}
	if s, ask := r.need(uuid, want, lacking); s != nil {
		s.supplement(uuid, ask, lacking, v, r.cfg.Patience)
	}
	r.say(uuid)
	return nil
}

// ReadParts are the second reader's.
func (r *Reader) ReadParts(want gpu.FieldSet, keep func(*gpu.Part) bool) ([]gpu.PartSnapshot, error) {
	r.mu.Lock()
	r.parts = true
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

// need says what the second reader is to be asked for a device that lacks
// wanted fields, and opens it; nil: it is not to be asked now.
func (r *Reader) need(uuid string, want, lacking gpu.FieldSet) (*second, gpu.FieldSet) {
	// What the first cannot be asked for is needed at once, and so is profiling
	// that it refuses. The rest may come with its next read, as rates do.
	reasons := r.First.Reasons(uuid)
	certain := lacking.Minus(reasons.Asked)
	if r.First.NoProfiling(uuid) != "" {
		certain = certain.Union(lacking.Intersect(r.prof))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.needs[uuid]
	if n == nil {
		n = &need{hopeless: r.hopeless(uuid)}
		r.needs[uuid] = n
	}
	if grown := n.update(want, lacking, certain, time.Now()); grown {
		r.retry, r.again = time.Time{}, 0 // it was of no use for less
	}
	if hoped := n.asked.Minus(n.hopeless); hoped.Empty() {
		return nil, gpu.FieldSet{}
	}
	return r.open(), n.asked
}

// hopeless are the fields for which the second reader is not opened: how busy a
// MIG instance is, neither library tells but in the profiling fields.
func (r *Reader) hopeless(uuid string) gpu.FieldSet {
	for i := range r.devices {
		if r.devices[i].UUID == uuid && r.devices[i].MIG != nil {
			return gpu.SetOf(gpu.GPUUtil, gpu.MemCopyUtil, gpu.EncUtil, gpu.DecUtil)
		}
	}
	return gpu.FieldSet{}
}

// open opens the second reader unless it is open, or was of no use not long ago.
// The caller holds r.mu.
func (r *Reader) open() *second {
	if r.second == nil && !r.closed && !time.Now().Before(r.retry) {
		r.second = startSecond(r.cfg.Open(r.instanceUUID), r.enumerated)
	}
	return r.second
}

// enumerated lets the second reader go where it is of no use: its library is
// not there, or it gives none of the fields that are wanted of it.
func (r *Reader) enumerated(s *second) (stop bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	why, noLibrary := s.useless(r.needs, r.parts, r.prof)
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

// instanceUUID is an instance's UUID, as the first reader knows it. One that is
// all of its GPU instance has no number of its own.
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

// Close closes both.
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

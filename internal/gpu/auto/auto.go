// SPDX-License-Identifier: Apache-2.0

// Package auto reads GPUs through NVML, and asks DCGM for what NVML does not
// give: the profiling fields of GPUs before Hopper, and NvSwitches, NVLinks and
// CPUs. DCGM is opened when something needs it, and not before: it takes tens
// to hundreds of MiB.
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
	second  *second           // nil: nothing needed it, or it was of no use
	retry   time.Time         // not opened again before
	why     string            // why it was of no use
	needy   map[string]bool   // devices whose profiling fields are wanted and not given by the first
	parts   bool              // parts are wanted
	devices []gpu.Device      // of the first
	said    map[string]string // by device: what was logged of its profiling fields
	closed  bool
}

var (
	_ First  = (*Reader)(nil)
	_ Second = (*Reader)(nil)
)

// reopenAfter is when a second reader that was of no use is tried again: another
// profiler may have had the counters, or somebody has installed the library.
const reopenAfter = 10 * time.Minute

// New makes a reader.
func New(cfg Config) *Reader {
	cfg.Patience = cmp.Or(cfg.Patience, time.Second)
	return &Reader{First: cfg.First, cfg: cfg, prof: gpu.ProfilingFields(), needy: map[string]bool{}, said: map[string]string{}}
}

// Devices are the first reader's.
func (r *Reader) Devices() ([]gpu.Device, error) {
	devices, err := r.First.Devices()
	if len(devices) > 0 {
		r.mu.Lock()
		r.devices = devices
		r.mu.Unlock()
	}
	return devices, err
}

// Read reads the first reader, and the second for the profiling fields that
// the device does not give to the first.
func (r *Reader) Read(uuid string, want gpu.FieldSet, v *gpu.Values) error {
	if err := r.First.Read(uuid, want, v); err != nil {
		return err
	}
	lacking := want.Intersect(r.prof).Minus(v.Fields())
	if !lacking.Empty() && r.First.NoProfiling(uuid) != "" {
		if s := r.need(uuid); s != nil {
			s.supplement(uuid, lacking, v, r.cfg.Patience)
		}
		r.say(uuid)
	}
	return nil
}

// ReadParts are the second reader's.
func (r *Reader) ReadParts(want gpu.FieldSet, keep func(*gpu.Part) bool) ([]gpu.PartSnapshot, error) {
	s := r.need("")
	if s == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		return nil, errors.New(r.why)
	}
	if err := s.ready(r.cfg.Patience); err != nil {
		return nil, err
	}
	return s.reader.ReadParts(want, keep)
}

// NoProfiling is why neither reader gives the device's profiling fields.
func (r *Reader) NoProfiling(uuid string) string {
	first := r.First.NoProfiling(uuid)
	if first == "" {
		return ""
	}
	r.mu.Lock()
	s, why := r.second, r.why
	r.mu.Unlock()
	if s != nil {
		why = s.noProfiling(uuid)
	}
	if why == "" {
		return ""
	}
	return first + "; " + why
}

// say logs where a device's profiling fields come from, or why from nowhere,
// when that is known and has changed.
func (r *Reader) say(uuid string) {
	lack := r.NoProfiling(uuid)
	r.mu.Lock()
	defer r.mu.Unlock()
	state := lack
	if lack == "" {
		if r.second == nil || !r.second.gives(uuid) {
			return // not known yet
		}
		state = "given"
	}
	if r.said[uuid] == state {
		return
	}
	r.said[uuid] = state
	if lack != "" {
		r.cfg.Log.Warn("GPU gives no profiling fields", "uuid", uuid, "reason", lack)
		return
	}
	r.cfg.Log.Info("profiling fields are read through DCGM", "uuid", uuid, "reason", r.First.NoProfiling(uuid))
}

// need opens the second reader, for a device's profiling fields or, where uuid
// is empty, for parts; nil: it is of no use now.
func (r *Reader) need(uuid string) *second {
	r.mu.Lock()
	defer r.mu.Unlock()
	if uuid == "" {
		r.parts = true
	} else {
		r.needy[uuid] = true
	}
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
	why := s.useless(r.needy, r.parts)
	if why == "" {
		return r.closed
	}
	r.second, r.why, r.retry = nil, why, time.Now().Add(reopenAfter)
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

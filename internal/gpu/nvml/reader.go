// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Reader is the gpu.Reader over NVML. A process should have one at a time:
// go-nvml keeps its choice of functions in package variables, which a reader's
// start sets, and binds each function once, to the first library.
type Reader struct {
	path string
	log  *slog.Logger
	lib  nvml.Interface
	xids gpu.XIDLog

	mu     sync.Mutex // held by Devices and Close, never by Read
	ses    *session   // nil while there is no driver
	closed bool

	devices atomic.Pointer[map[string]*device] // by UUID
}

var _ gpu.Reader = (*Reader)(nil)

// New makes a reader. It never fails and touches nothing: the library is
// loaded by Devices.
func New(cfg Config) *Reader {
	r := &Reader{path: cfg.Library, log: cfg.Log}
	if r.path == "" {
		r.path = "libnvidia-ml.so.1"
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	r.lib = nvml.New(nvml.WithLibraryPath(r.path))
	r.devices.Store(&map[string]*device{})
	return r
}

// Backend is the name of this backend.
func (r *Reader) Backend() string { return "nvml" }

// Devices loads and initialises NVML if need be and enumerates the GPUs, each
// followed by its MIG instances. A GPU that was known and is lost stays in the
// list.
func (r *Reader) Devices() ([]gpu.Device, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errors.New("the NVML reader is closed")
	}
	for attempt := 0; ; attempt++ {
		if r.ses != nil && r.ses.broken.Load() {
			_ = r.ses.close() // a call that hangs is not in the way of a new session
			r.ses = nil
		}
		if r.ses == nil {
			ses, err := open(r.lib, r.path, &r.xids, r.log)
			if err != nil {
				return nil, err
			}
			r.ses = ses
		}
		devices, err := r.enumerate(r.ses)
		// A driver that was reloaded since the last call shows only now.
		if errors.Is(err, gpu.ErrNoDriver) && attempt == 0 {
			continue
		}
		return devices, err
	}
}

// enter finds a device and asks to call the library for it: where there is no
// error, its session's Leave must follow.
func (r *Reader) enter(uuid string) (*device, error) {
	d, ok := (*r.devices.Load())[uuid]
	if !ok {
		return nil, fmt.Errorf("%w: %s", gpu.ErrUnknownDevice, uuid)
	}
	if d.ses.broken.Load() || !d.ses.Enter() {
		return nil, fmt.Errorf("%w (since the devices were enumerated)", gpu.ErrNoDriver)
	}
	return d, nil
}

// Read fills v with the wanted fields of a device. See gpu.Reader.
func (r *Reader) Read(uuid string, want gpu.FieldSet, v *gpu.Values) error {
	v.Reset()
	d, err := r.enter(uuid)
	if err != nil {
		return err
	}
	defer d.ses.Leave()
	if want.Empty() {
		return nil
	}
	if err = d.read(want, v); err != nil {
		v.Reset()
	}
	return err
}

// XIDs are the XID errors of the device seen so far, sorted by code.
func (r *Reader) XIDs(uuid string) []gpu.XIDCount { return r.xids.Counts(uuid) }

// NoProfiling is why the device gives no profiling fields. See gpu.Profiler.
func (r *Reader) NoProfiling(uuid string) string {
	if d, ok := (*r.devices.Load())[uuid]; ok {
		return d.noProfiling()
	}
	return ""
}

// Close ends the events goroutine and lets NVML go. Reads that hang in the
// library are not waited for: the last one to return lets it go.
func (r *Reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.devices.Store(&map[string]*device{})
	if r.ses == nil {
		return nil
	}
	ses := r.ses
	r.ses = nil
	return ses.close()
}

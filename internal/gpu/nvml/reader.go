// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"cmp"
	"log/slog"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Reader is the gpu.Reader over NVML. A process should have one at a time:
// go-nvml keeps its choice of functions in package variables, which a reader's
// start sets, and binds each function once, to the first library.
type Reader struct {
	library *gpu.Library[*session, *device]
}

var (
	_ gpu.Reader    = (*Reader)(nil)
	_ gpu.Explainer = (*Reader)(nil)
)

// New makes a reader. It never fails and touches nothing: the library is
// loaded by Devices.
func New(cfg Config) *Reader {
	path, log := cmp.Or(cfg.Library, "libnvidia-ml.so.1"), cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	lib := nvml.New(nvml.WithLibraryPath(path))
	r := &Reader{}
	r.library = gpu.NewLibrary(gpu.LibraryConfig[*session, *device]{
		Name:      "NVML",
		Open:      func() (*session, error) { return open(lib, path, r.library.Log(), log) },
		Enumerate: r.enumerate,
		SessionOf: func(d *device) *session { return d.ses },
		Read:      (*device).read,
	})
	return r
}

// Backend is the name of this backend.
func (r *Reader) Backend() string { return "nvml" }

// Devices loads and initialises NVML if need be and enumerates the GPUs, each
// followed by its MIG instances. A GPU that was known and is lost stays in the
// list.
func (r *Reader) Devices() ([]gpu.Device, error) { return r.library.Devices() }

// Read fills v with the wanted fields of a device. See gpu.Reader.
func (r *Reader) Read(uuid string, want gpu.FieldSet, v *gpu.Values) error {
	return r.library.ReadDevice(uuid, want, v)
}

// XIDs are the XID errors of the device seen so far, sorted by code.
func (r *Reader) XIDs(uuid string) []gpu.XIDCount { return r.library.Log().Counts(uuid) }

// NoProfiling is why the device gives no profiling fields. See gpu.Profiler.
func (r *Reader) NoProfiling(uuid string) string {
	if d, ok := r.library.Known()[uuid]; ok {
		return d.noProfiling()
	}
	return ""
}

// Reasons are why the device lacks fields. See gpu.Explainer.
func (r *Reader) Reasons(uuid string) gpu.Reasons {
	d, ok := r.library.Known()[uuid]
	if !ok {
		return gpu.Reasons{}
	}
	w := gpu.Reasons{
		Asked: d.ses.asks, Refused: "NVML does not give it for this GPU and driver",
		Unasked: "not read through NVML; DCGM may give it (--backend auto or dcgm)",
	}
	if d.MIG != nil {
		w.Refused = "NVML does not give it for a MIG instance"
	}
	return w
}

// Close ends the events goroutine and lets NVML go. Reads that hang in the
// library are not waited for: the last one to return lets it go.
func (r *Reader) Close() error { return r.library.Close() }

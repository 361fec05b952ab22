// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"cmp"
	"log/slog"
	"sync/atomic"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// Reader is the gpu.Reader over NVML. A process should have one at a time:
// go-nvml keeps its choice of functions in package variables, which the start of
// a reader sets. It binds each function once, to the first library.
type Reader struct {
	*vendorlib.Reader[*session, *device]
	pass *atomic.Pointer[[]gpu.FieldID] // that NVML has; nil: Pass was not called
}

var (
	_ gpu.Reader    = (*Reader)(nil)
	_ gpu.Explainer = (*Reader)(nil)
	_ gpu.Passer    = (*Reader)(nil)
)

// New returns a reader. It does not load the library: Devices does.
func New(cfg Config) *Reader {
	path, log := cmp.Or(cfg.Library, "libnvidia-ml.so.1"), cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	lib := nvml.New(nvml.WithLibraryPath(path))
	pass := &atomic.Pointer[[]gpu.FieldID]{}
	return &Reader{pass: pass, Reader: vendorlib.NewReader(vendorlib.Config[*session, *device]{
		Name:      "NVML",
		HungAfter: hungAfter,
		Open: func(xids *gpu.XIDLog) (*session, error) {
			s, err := open(lib, path, pass)
			if err == nil {
				s.events = newEvents(s, xids, cmp.Or(cfg.eventWait, eventWait), log)
			}
			return s, err
		},
		Enumerate: (*session).enumerate,
	})}
}

// Backend returns the name of this backend.
func (r *Reader) Backend() string { return "nvml" }

// NoProfiling returns why the device gives no profiling fields. See gpu.Profiler.
func (r *Reader) NoProfiling(uuid string) string {
	if d, ok := r.Known()[uuid]; ok {
		return d.noProfiling()
	}
	return ""
}

// Reasons returns why the device lacks fields. See gpu.Explainer.
func (r *Reader) Reasons(uuid string) gpu.Reasons {
	d, ok := r.Known()[uuid]
	if !ok {
		return gpu.Reasons{}
	}
	w := gpu.Reasons{
		Asked: d.ses.asks, Refused: "NVML does not give it for this GPU and driver",
		Unasked: gpu.UnreadByNVML + "; DCGM may give it (--backend auto or dcgm)",
	}
	if d.MIG != nil {
		w.Refused = "NVML does not give it for a MIG instance"
	}
	return w
}

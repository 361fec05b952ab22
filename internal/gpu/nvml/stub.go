// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !cgo

package nvml

import (
	"fmt"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// Reader is the reader of a program that was built without NVML support. It
// finds no library.
type Reader struct{ vendorlib.Unbuilt }

// New returns a reader that finds no library.
func New(Config) *Reader { return &Reader{"NVML"} }

// Backend returns the name of this backend.
func (*Reader) Backend() string { return "nvml" }

// Pass does nothing.
func (*Reader) Pass([]gpu.FieldID) []gpu.FieldID { return nil }

// Processes fails with gpu.ErrUnknownDevice.
func (r *Reader) Processes(uuid string) (gpu.Processes, error) {
	return gpu.Processes{}, r.Unknown(uuid)
}

// Topology fails with gpu.ErrNoDriver.
func (*Reader) Topology() (gpu.Topology, error) {
	return gpu.Topology{}, fmt.Errorf("topology: %w", gpu.ErrNoDriver)
}

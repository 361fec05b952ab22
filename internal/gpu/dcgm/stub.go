// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !cgo

package dcgm

import (
	"fmt"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Reader stands in where DCGM cannot be loaded: not on Linux, or built without
// cgo. It finds no library.
type Reader struct{}

// New returns a reader that finds no library.
func New(Config) *Reader { return &Reader{} }

// Backend is the name of this backend.
func (*Reader) Backend() string { return "dcgm" }

// Devices fails with gpu.ErrNoLibrary.
func (*Reader) Devices() ([]gpu.Device, error) {
	return nil, fmt.Errorf("%w: this program was built without DCGM support (it needs linux and cgo)", gpu.ErrNoLibrary)
}

// Read fails: there are no devices.
func (*Reader) Read(uuid string, _ gpu.FieldSet, v *gpu.Values) error {
	v.Reset()
	return fmt.Errorf("%w: %s", gpu.ErrUnknownDevice, uuid)
}

// ReadParts fails with gpu.ErrNoLibrary.
func (*Reader) ReadParts(gpu.FieldSet, func(*gpu.Part) bool) ([]gpu.PartSnapshot, error) {
	return nil, fmt.Errorf("%w: this program was built without DCGM support (it needs linux and cgo)", gpu.ErrNoLibrary)
}

// Links fails: there are no devices.
func (*Reader) Links(uuid string) (gpu.Links, error) {
	return gpu.Links{}, fmt.Errorf("%w: %s", gpu.ErrUnknownDevice, uuid)
}

// Health fails: there are no devices.
func (*Reader) Health(uuid string) (*gpu.Verdicts, error) {
	return nil, fmt.Errorf("%w: %s", gpu.ErrUnknownDevice, uuid)
}

// NoProfiling gives no reason: there are no devices.
func (*Reader) NoProfiling(string) string { return "" }

// Reasons are none: there are no devices.
func (*Reader) Reasons(string) gpu.Reasons { return gpu.Reasons{} }

// XIDs are none.
func (*Reader) XIDs(string) []gpu.XIDCount { return nil }

// Close does nothing.
func (*Reader) Close() error { return nil }

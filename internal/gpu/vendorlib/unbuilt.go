// SPDX-License-Identifier: Apache-2.0

package vendorlib

import (
	"fmt"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Unbuilt is the gpu.Reader of a library that this program was built without:
// for an operating system other than Linux, or without cgo. Its value is the
// library's name.
type Unbuilt string

// Err is a gpu.ErrNoLibrary that says how to build the program with the library.
func (u Unbuilt) Err() error {
	return fmt.Errorf("%w: this program was built without %s support (it needs linux and cgo)", gpu.ErrNoLibrary, string(u))
}

// Unknown is the gpu.ErrUnknownDevice of a UUID: there are no devices.
func (Unbuilt) Unknown(uuid string) error { return fmt.Errorf("%w: %s", gpu.ErrUnknownDevice, uuid) }

// Devices fails with gpu.ErrNoLibrary.
func (u Unbuilt) Devices() ([]gpu.Device, error) { return nil, u.Err() }

// Read fails with gpu.ErrUnknownDevice.
func (u Unbuilt) Read(uuid string, _ gpu.FieldSet, v *gpu.Values) error {
	v.Reset()
	return u.Unknown(uuid)
}

// Links fails with gpu.ErrUnknownDevice.
func (u Unbuilt) Links(uuid string) (gpu.Links, error) { return gpu.Links{}, u.Unknown(uuid) }

// NoProfiling returns no reason: there are no devices.
func (Unbuilt) NoProfiling(string) string { return "" }

// Reasons returns none: there are no devices.
func (Unbuilt) Reasons(string) gpu.Reasons { return gpu.Reasons{} }

// XIDs returns none: there are no devices.
func (Unbuilt) XIDs(string) []gpu.XIDCount { return nil }

// Close does nothing.
func (Unbuilt) Close() error { return nil }

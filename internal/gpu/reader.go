// SPDX-License-Identifier: Apache-2.0

package gpu

import "errors"

// The errors that a caller branches on. Backends wrap them with %w.
var (
	// ErrNoLibrary: the vendor's library cannot be loaded. It may appear later.
	ErrNoLibrary = errors.New("GPU library not found")
	// ErrNoDriver: the library is there, the driver is not (yet).
	ErrNoDriver = errors.New("GPU driver not loaded")
	// ErrLost: the device fell off the bus or needs a reset. Others go on.
	ErrLost = errors.New("GPU lost")
	// ErrUnknownDevice: no device has this UUID (any more); enumerate anew.
	ErrUnknownDevice = errors.New("unknown device")
)

// Reader reads GPUs. It is the domain's port: package nvml reads real ones,
// package sim makes them up. All methods may block for as long as the library
// below does (a cgo call cannot be cancelled), so a caller owns each with a
// goroutine of its own.
//
// Methods are safe for concurrent use, but for one device Read is called by
// one goroutine at a time.
type Reader interface {
	// Backend is the reader's name as it is shown: nvml, dcgm or sim.
	Backend() string
	// Devices enumerates what can be read now: GPUs, and where MIG is on the
	// MIG instances after their GPU. A device that cannot be enumerated is left
	// out and does not hide the others; the error then says which, beside a
	// non-empty list. A nil list with ErrNoLibrary or ErrNoDriver: nothing can
	// be read at all; calling again tries again from the start.
	Devices() ([]Device, error)
	// Read fills v with the wanted fields of the device with this UUID, each
	// in its field's unit. What the device does not give is left absent. An
	// error (ErrLost, ErrUnknownDevice, …) means that nothing in v is good.
	Read(uuid string, want FieldSet, v *Values) error
	// XIDs are the XID errors of the device seen so far, sorted by code, in a
	// slice that the caller may keep. It never blocks.
	XIDs(uuid string) []XIDCount
	// Close ends the reader's goroutines and lets the library go.
	Close() error
}

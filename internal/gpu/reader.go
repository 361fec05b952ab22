// SPDX-License-Identifier: Apache-2.0

package gpu

import "errors"

// The errors that callers distinguish. Backends wrap them with %w.
var (
	// ErrNoLibrary: the vendor's library cannot be loaded. It may appear later.
	ErrNoLibrary = errors.New("GPU library not found")
	// ErrNoDriver: the library can be loaded, but the driver is not loaded. It
	// may be later.
	ErrNoDriver = errors.New("GPU driver not loaded")
	// ErrReleased: the library is closed, because somebody asked for it.
	ErrReleased = errors.New("the GPUs are released on request")
	// ErrReplaced: the loaded driver has another version than the library. It is
	// an ErrNoDriver too.
	ErrReplaced error = replaced{}
	// ErrLost: the device fell off the bus or needs a reset. Other devices are
	// not affected.
	ErrLost = errors.New("GPU lost")
	// ErrUnknownDevice: no listed device has this UUID. Enumerate again.
	ErrUnknownDevice = errors.New("unknown device")
)

type replaced struct{}

func (replaced) Error() string { return "the GPU driver and its library have different versions" }

// Is makes it an ErrNoDriver.
func (replaced) Is(target error) bool { return target == ErrNoDriver }

// Reader reads GPUs. It is the domain's port: packages nvml and dcgm read real
// GPUs, package sim simulates them. All methods may block for as long as the
// vendor's library does, because a cgo call cannot be cancelled. A caller
// therefore needs a goroutine for each call.
//
// Methods are safe for concurrent use, except that Read of one device is for
// one goroutine at a time.
type Reader interface {
	// Backend returns the reader's name: nvml, dcgm or sim.
	Backend() string
	// Devices enumerates the readable devices: each GPU, followed by its MIG
	// instances. If some devices cannot be enumerated, it returns the others
	// and an error that names the failed ones. It returns a nil list with
	// ErrNoLibrary or ErrNoDriver if nothing can be read; the next call starts
	// again.
	Devices() ([]Device, error)
	// Read fills v with the wanted fields of the device with this UUID, each in
	// its field's unit. Fields that the device does not give are absent. After
	// an error (ErrLost, ErrUnknownDevice, …), v is empty.
	Read(uuid string, want FieldSet, v *Values) error
	// XIDs returns the XID errors of the device seen so far, sorted by code, in
	// a slice that the caller may keep. It never blocks.
	XIDs(uuid string) []XIDCount
	// Close ends the reader's goroutines and closes the library.
	Close() error
}

// Releaser is a Reader that can let go of the devices.
type Releaser interface {
	// Release closes the library, so that no file of a device is open, and ends the
	// reader's goroutines. An error says that a call still hangs in the library. Reads
	// fail until the next call of Devices, which opens the library again. What was
	// counted stays.
	Release() error
}

// Passer is a Reader that also reads fields of DCGM that are not in the table, by
// their numbers.
type Passer interface {
	// Pass sets these fields. From then on, Read and ReadParts also read them, each of
	// the devices or parts that have it: see Values.Passed and Values.GetLabel. It
	// returns the fields that this reader never has, in the order of ids. It does not
	// block. The caller must not change ids afterwards.
	Pass(ids []FieldID) (others []FieldID)
}

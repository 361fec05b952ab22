// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !cgo

package dcgm

import (
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// Reader is the reader of a program that was built without DCGM support. It
// finds no library.
type Reader struct{ vendorlib.Unbuilt }

// New returns a reader that finds no library.
func New(Config) *Reader { return &Reader{"DCGM"} }

// Backend returns the name of this backend.
func (*Reader) Backend() string { return "dcgm" }

// ReadParts fails with gpu.ErrNoLibrary.
func (r *Reader) ReadParts(gpu.FieldSet, func(*gpu.Part) bool) ([]gpu.PartSnapshot, error) {
	return nil, r.Err()
}

// Topology fails with gpu.ErrNoLibrary.
func (r *Reader) Topology() (gpu.Topology, error) { return gpu.Topology{}, r.Err() }

// Pass does nothing.
func (*Reader) Pass([]gpu.FieldID) []gpu.FieldID { return nil }

// Health fails with gpu.ErrUnknownDevice.
func (r *Reader) Health(uuid string) (*gpu.Verdicts, error) { return nil, r.Unknown(uuid) }

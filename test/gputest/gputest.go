// SPDX-License-Identifier: Apache-2.0

// Package gputest is the conformance suite that every gpu.Reader passes. A
// backend's test passes a function that opens a new reader over at least two
// GPUs, with the controls that the backend supports. A test that needs an
// unsupported control is skipped.
package gputest

import (
	"slices"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Control changes the state of a reader's GPUs. A GPU is identified by its
// position among the whole GPUs of Devices. A change is in force when the
// function returns. A nil function is not supported by the backend.
type Control struct {
	// Set sets a field's value in the field's unit; NaN is a blank value. For a
	// field that the reader derives as a rate, the value is the rate from now
	// on. It returns false if the backend cannot set this field.
	Set func(gpu int, id gpu.FieldID, value float64) bool
	// Unsupport makes the GPU not support a field. It returns false if the
	// backend cannot do that for this field.
	Unsupport func(gpu int, id gpu.FieldID) bool
	// Lose makes the GPU fall off the bus, Restore brings it back.
	Lose, Restore func(gpu int)
	// UnloadDriver unloads the driver while the reader uses it; LoadDriver
	// loads it again.
	UnloadDriver, LoadDriver func()
	// Hang makes reads of the GPU block until release is called.
	Hang func(gpu int) (release func())
	// RaiseXID raises an XID error.
	RaiseXID func(gpu int, code uint64)
	// EnableMIG cuts the GPU into n instances of a profile such as 1g.18gb.
	EnableMIG func(gpu int, profile string, n int)
	// SetProcesses sets the processes that use the GPU. The reader must be a
	// gpu.ProcessReader. NoProcessTimes: their utilisation is not supported.
	SetProcesses   func(gpu int, ps []gpu.Process)
	NoProcessTimes bool
}

// Backend is a new reader and the control of its GPUs. It starts with at least
// two whole, healthy GPUs that support every field that Set accepts.
type Backend struct {
	Reader  gpu.Reader
	Control Control
}

// patience is how long the suite waits for a change to show: longer than a GPM
// sample's 100 ms and an event wait's second, on a busy machine.
const patience = time.Minute

// Run runs every test, each on a new backend. The suite closes the reader.
func Run(t *testing.T, open func(t *testing.T) Backend) {
	facts := []struct {
		name  string
		needs func(c Control) bool
		check func(t *testing.T, b *bench)
	}{
		{"enumeration is complete and stable", always, enumeration},
		{"a value comes in its field's unit", func(c Control) bool { return c.Set != nil }, units},
		{"only wanted fields are read", always, wanted},
		{"an unsupported field is absent, not 0", func(c Control) bool { return c.Unsupport != nil }, unsupported},
		{"a blank value is absent", func(c Control) bool { return c.Set != nil }, blank},
		{"a lost GPU fails alone and comes back", func(c Control) bool { return c.Lose != nil && c.Restore != nil }, lost},
		{"an unknown UUID is ErrUnknownDevice", always, unknown},
		{"devices are read concurrently", always, concurrent},
		{"a hang does not reach other devices", func(c Control) bool { return c.Hang != nil }, hang},
		{"XIDs are counted by code", func(c Control) bool { return c.RaiseXID != nil }, xids},
		{"an XID of a GPU that is lost is counted", func(c Control) bool { return c.RaiseXID != nil && c.Lose != nil }, lostXIDs},
		{"an XID of a GPU that hangs is counted", func(c Control) bool { return c.RaiseXID != nil && c.Hang != nil }, hungXIDs},
		{"a driver that comes late is found", driverKnobs, driverLate},
		{"a driver that goes is missed and found again", driverKnobs, driverGoes},
		{"processes are listed with what they use", processKnob, processes},
		{"a lost GPU has no list of processes", func(c Control) bool { return processKnob(c) && c.Lose != nil }, lostProcesses},
		{"processes are listed while a read hangs", func(c Control) bool { return processKnob(c) && c.Hang != nil }, hungProcesses},
		{"MIG instances follow their GPU", func(c Control) bool { return c.EnableMIG != nil }, mig},
		{"the topology names every GPU and pair", always, topology},
		{"Close ends the reader's goroutines", always, closes},
	}
	for _, f := range facts {
		t.Run(f.name, func(t *testing.T) {
			b := &bench{Backend: open(t)}
			defer b.close(t)
			if !f.needs(b.Control) {
				t.Skip("the backend has no knob for this")
			}
			f.check(t, b)
		})
	}
}

func always(Control) bool        { return true }
func processKnob(c Control) bool { return c.SetProcesses != nil }
func driverKnobs(c Control) bool { return c.UnloadDriver != nil && c.LoadDriver != nil }

// bench is a backend under test.
type bench struct {
	Backend
	closed bool
}

func (b *bench) close(t *testing.T) {
	t.Helper()
	if b.closed {
		return
	}
	b.closed = true
	if err := b.Reader.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// devices enumerates, or ends the test.
func (b *bench) devices(t *testing.T) []gpu.Device {
	t.Helper()
	devices, err := b.Reader.Devices()
	if err != nil {
		t.Fatalf("Devices: %v", err)
	}
	return devices
}

// gpus enumerates whole GPUs, or ends the test if there are fewer than two.
func (b *bench) gpus(t *testing.T) []gpu.Device {
	t.Helper()
	whole := slices.DeleteFunc(b.devices(t), func(d gpu.Device) bool { return d.MIG != nil })
	if len(whole) < 2 {
		t.Fatalf("%d GPUs: the suite needs two", len(whole))
	}
	return whole
}

// read reads the wanted fields, or ends the test.
func (b *bench) read(t *testing.T, uuid string, want ...gpu.FieldID) *gpu.Values {
	t.Helper()
	var v gpu.Values
	if err := b.Reader.Read(uuid, gpu.SetOf(want...), &v); err != nil {
		t.Fatalf("Read %s: %v", uuid, err)
	}
	return &v
}

// eventually calls ask until the answer is empty. It fails with the last answer
// after patience.
func eventually(t *testing.T, ask func() string) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		answer := ask()
		if answer == "" {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("after %v still: %s", patience, answer)
		case <-tick.C:
		}
	}
}

// empty reports whether v is empty.
func empty(v *gpu.Values) bool {
	have := v.Fields()
	return have.Empty() && len(labels(v)) == 0
}

// labels returns the ids of the Label fields in v.
func labels(v *gpu.Values) []gpu.FieldID {
	var ids []gpu.FieldID
	for _, f := range gpu.Fields() {
		if _, ok := v.GetLabel(f.ID); ok {
			ids = append(ids, f.ID)
		}
	}
	return ids
}

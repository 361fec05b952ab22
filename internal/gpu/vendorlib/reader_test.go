// SPDX-License-Identifier: Apache-2.0

package vendorlib

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// fakeSession is a session of a library whose GPUs the test sets.
type fakeSession struct {
	*Session
	lib *fakeLib
}

type fakeDevice struct {
	gpu.Device
	Guard
	ses  *fakeSession
	lib  *fakeLib
	born int // a device with the same UUID and another birth is another device
}

func (d *fakeDevice) Identity() gpu.Device  { return d.Device }
func (d *fakeDevice) Session() *fakeSession { return d.ses }
func (d *fakeDevice) Read(_ gpu.FieldSet, v *gpu.Values) error {
	if !d.Begin(time.Now()) {
		return gpu.ErrUnknownDevice
	}
	defer d.End()
	v.Set(gpu.GPUUtil, 50)
	return d.lib.readErr
}

func (d *fakeDevice) Release(*fakeSession) {
	d.Guard.Release(func() { d.lib.released = append(d.lib.released, d.UUID) })
}

// fakeLib is a library with one GPU for each UUID.
type fakeLib struct {
	uuids    []string
	gpuErr   map[int]error // by index
	born     int
	fails    []error // one for each enumeration; then none
	readErr  error
	opened   int
	shut     int
	released []string
}

func (f *fakeLib) reader() *Reader[*fakeSession, *fakeDevice] {
	return NewReader(Config[*fakeSession, *fakeDevice]{
		Name: "FAKE", HungAfter: time.Minute,
		Open: func(*gpu.XIDLog) (*fakeSession, error) {
			f.opened++
			return &fakeSession{NewSession("FAKE", func() { f.shut++ }), f}, nil
		},
		Enumerate: func(s *fakeSession, l *Listing[*fakeSession, *fakeDevice]) error {
			if len(f.fails) > 0 {
				err := f.fails[0]
				f.fails = f.fails[1:]
				return err
			}
			for i, uuid := range f.uuids {
				if err := f.gpuErr[i]; err != nil {
					known, _ := l.KnownAt(i)
					if err := l.Add(i, known, err); err != nil {
						return err
					}
					continue
				}
				d, ok := l.Known(uuid)
				if !ok || d.born != f.born {
					d = &fakeDevice{Device: gpu.Device{Index: i, UUID: uuid}, ses: s, lib: f, born: f.born}
				}
				_ = l.Add(i, []*fakeDevice{d}, nil)
			}
			return nil
		},
	})
}

func uuids(list []gpu.Device) string {
	var out []string
	for _, d := range list {
		out = append(out, d.UUID)
	}
	return strings.Join(out, " ")
}

func TestAFailedGPUIsKeptAndHidesNoOther(t *testing.T) {
	f := &fakeLib{uuids: []string{"a", "b"}}
	r := f.reader()
	if list, err := r.Devices(); err != nil || uuids(list) != "a b" {
		t.Fatal(list, err)
	}
	f.gpuErr = map[int]error{0: gpu.ErrLost}
	list, err := r.Devices()
	if uuids(list) != "a b" || !errors.Is(err, gpu.ErrLost) || !strings.Contains(err.Error(), "GPU 0") {
		t.Errorf("%q, %v", uuids(list), err)
	}
	if f.opened != 1 || len(f.released) != 0 {
		t.Errorf("opened %d, released %v", f.opened, f.released)
	}
}

func TestReplacedAndMissingDevicesAreReleased(t *testing.T) {
	f := &fakeLib{uuids: []string{"a", "b"}}
	r := f.reader()
	_, _ = r.Devices()
	old := r.Known()["a"]
	f.uuids, f.born = []string{"a"}, 1
	if list, err := r.Devices(); err != nil || uuids(list) != "a" || len(f.released) != 2 {
		t.Errorf("%q, %v, released %v", uuids(list), err, f.released)
	}
	var v gpu.Values
	if err := old.Read(gpu.SetOf(gpu.GPUUtil), &v); !errors.Is(err, gpu.ErrUnknownDevice) {
		t.Errorf("read of a released device: %v", err)
	}
	if err := r.Read("a", gpu.SetOf(gpu.GPUUtil), &v); err != nil || !v.Has(gpu.GPUUtil) {
		t.Errorf("read of its successor: %v", err)
	}
	if err := r.Read("b", gpu.SetOf(gpu.GPUUtil), &v); !errors.Is(err, gpu.ErrUnknownDevice) || v.Has(gpu.GPUUtil) {
		t.Errorf("read of a missing device: %v", err)
	}
}

func TestALostDriverOpensANewSession(t *testing.T) {
	f := &fakeLib{uuids: []string{"a"}}
	r := f.reader()
	_, _ = r.Devices()
	f.fails = []error{gpu.ErrNoDriver}
	if list, err := r.Devices(); err != nil || uuids(list) != "a" || f.opened != 2 || f.shut != 1 {
		t.Errorf("%q, %v, opened %d, shut %d", uuids(list), err, f.opened, f.shut)
	}
	// It is tried twice at a call, not for ever.
	f.fails = []error{gpu.ErrNoDriver, gpu.ErrNoDriver}
	if _, err := r.Devices(); !errors.Is(err, gpu.ErrNoDriver) || f.opened != 3 {
		t.Errorf("%v, opened %d", err, f.opened)
	}
	var v gpu.Values
	if err := r.Read("a", gpu.SetOf(gpu.GPUUtil), &v); !errors.Is(err, gpu.ErrNoDriver) {
		t.Errorf("read in a broken session: %v", err)
	}
	if _, err := r.Devices(); err != nil || f.opened != 4 || f.shut != 3 {
		t.Errorf("%v, opened %d, shut %d", err, f.opened, f.shut)
	}
}

func TestValuesOfAFailedReadAreDropped(t *testing.T) {
	f := &fakeLib{uuids: []string{"a"}, readErr: gpu.ErrLost}
	r := f.reader()
	_, _ = r.Devices()
	var v gpu.Values
	if err := r.Read("a", gpu.SetOf(gpu.GPUUtil), &v); !errors.Is(err, gpu.ErrLost) || v.Has(gpu.GPUUtil) {
		t.Errorf("%v, has a value: %v", err, v.Has(gpu.GPUUtil))
	}
	if err := r.Close(); err != nil || f.shut != 1 {
		t.Errorf("%v, shut %d", err, f.shut)
	}
	if _, err := r.Devices(); err == nil {
		t.Error("a closed reader enumerates")
	}
}

func TestKnownAtReportsAHungRead(t *testing.T) {
	f := &fakeLib{uuids: []string{"a", "b"}}
	r := f.reader()
	_, _ = r.Devices()
	s, _ := r.Opened()
	l := &Listing[*fakeSession, *fakeDevice]{session: s, hungAfter: time.Minute, before: r.known.Load()}
	r.Known()["b"].Begin(time.Now().Add(-time.Hour))
	if known, hung := l.KnownAt(0); len(known) != 1 || hung {
		t.Errorf("GPU 0: %d devices, hung %v", len(known), hung)
	}
	if known, hung := l.KnownAt(1); len(known) != 1 || !hung {
		t.Errorf("GPU 1: %d devices, hung %v", len(known), hung)
	}
	l.session = nil
	if known, _ := l.KnownAt(1); len(known) != 0 {
		t.Error("a device of another session is known")
	}
}

func TestUnbuilt(t *testing.T) {
	u := Unbuilt("NVML")
	_, err := u.Devices()
	if !errors.Is(err, gpu.ErrNoLibrary) || !strings.Contains(err.Error(), "without NVML support") {
		t.Error(err)
	}
	if err := u.Read("a", gpu.FieldSet{}, &gpu.Values{}); !errors.Is(err, gpu.ErrUnknownDevice) {
		t.Error(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package gputest

import (
	"errors"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

var (
	gpuUUID = regexp.MustCompile(`^GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	migUUID = regexp.MustCompile(`^MIG-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	busID   = regexp.MustCompile(`^[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7]$`)
)

func enumeration(t *testing.T, b *bench) {
	if b.Reader.Backend() == "" {
		t.Error("the backend has no name")
	}
	first := b.gpus(t)
	seen := map[string]bool{}
	for i, d := range first {
		if d.Index != i || d.Minor < 0 {
			t.Errorf("GPU %d: index %d, minor %d", i, d.Index, d.Minor)
		}
		if !gpuUUID.MatchString(d.UUID) || !busID.MatchString(d.PCIBusID) || d.Model == "" {
			t.Errorf("GPU %d: UUID %q, PCI bus id %q, model %q", i, d.UUID, d.PCIBusID, d.Model)
		}
		if seen[d.UUID] || seen[d.PCIBusID] {
			t.Errorf("GPU %d has another's UUID or PCI bus id", i)
		}
		seen[d.UUID], seen[d.PCIBusID] = true, true
	}
	for range 3 {
		if again := b.gpus(t); !reflect.DeepEqual(first, again) {
			t.Fatalf("enumerated anew: %+v, before: %+v", again, first)
		}
	}
}

// steady returns the fields that every backend gives for a healthy GPU.
func steady() []gpu.FieldID { return []gpu.FieldID{gpu.GPUUtil, gpu.FBUsed} }

// lost loses GPU 1 while GPU 0 works, and restores it.
func lost(t *testing.T, b *bench) {
	gpus := b.gpus(t)
	for _, d := range gpus {
		b.read(t, d.UUID, steady()...)
	}
	b.Control.Lose(1)
	everything := gpu.AllFields()
	for _, want := range []gpu.FieldSet{everything, gpu.SetOf(steady()...), gpu.SetOf(gpu.TotalEnergy)} {
		var v gpu.Values
		v.Set(gpu.GPUUtil, 99)
		if err := b.Reader.Read(gpus[1].UUID, want, &v); !errors.Is(err, gpu.ErrLost) {
			t.Errorf("reading the lost GPU: %v, want ErrLost", err)
		}
		if !empty(&v) {
			t.Errorf("the lost GPU gave %v and labels %v", v.Fields(), labels(&v))
		}
	}
	b.healthy(t, gpus[0].UUID)
	again, err := b.Reader.Devices()
	for i, d := range gpus {
		if i != 1 && !slices.ContainsFunc(again, func(e gpu.Device) bool { return e.UUID == d.UUID }) {
			t.Errorf("GPU %d is hidden by the lost one (error %v)", i, err)
		}
	}
	var v gpu.Values
	if err := b.Reader.Read(gpus[1].UUID, everything, &v); !errors.Is(err, gpu.ErrLost) || !empty(&v) {
		t.Errorf("reading the lost GPU after enumeration: %v, want ErrLost and no value", err)
	}
	b.Control.Restore(1)
	eventually(t, func() string {
		_, _ = b.Reader.Devices()
		if err := b.Reader.Read(gpus[1].UUID, gpu.SetOf(steady()...), &v); err != nil {
			return err.Error()
		}
		return ""
	})
	b.healthy(t, gpus[1].UUID)
}

// healthy checks that the device gives every steady field.
func (b *bench) healthy(t *testing.T, uuid string) {
	t.Helper()
	v := b.read(t, uuid, steady()...)
	for _, id := range steady() {
		if !v.Has(id) {
			t.Errorf("%s: %s is absent", uuid, id)
		}
	}
}

func unknown(t *testing.T, b *bench) {
	b.gpus(t)
	var v gpu.Values
	v.Set(gpu.GPUUtil, 99)
	err := b.Reader.Read("GPU-ffffffff-ffff-ffff-ffff-ffffffffffff", gpu.AllFields(), &v)
	if !errors.Is(err, gpu.ErrUnknownDevice) || !empty(&v) {
		t.Errorf("Read: %v, want ErrUnknownDevice and no value", err)
	}
	if x := b.Reader.XIDs("GPU-ffffffff-ffff-ffff-ffff-ffffffffffff"); len(x) != 0 {
		t.Errorf("XIDs: %v", x)
	}
}

// concurrent reads all devices at once, and enumerates and asks for XIDs
// meanwhile. The race detector decides.
func concurrent(t *testing.T, b *bench) {
	gpus := b.gpus(t)
	var wg sync.WaitGroup
	for _, d := range gpus {
		wg.Go(func() {
			var v gpu.Values
			for range 20 {
				if err := b.Reader.Read(d.UUID, gpu.AllFields(), &v); err != nil {
					t.Errorf("Read %s: %v", d.UUID, err)
				}
			}
		})
	}
	wg.Go(func() {
		for range 10 {
			if _, err := b.Reader.Devices(); err != nil {
				t.Errorf("Devices: %v", err)
			}
			b.Reader.XIDs(gpus[0].UUID)
		}
	})
	wg.Wait()
}

// hang reads GPU 1 while a read of GPU 0 hangs.
func hang(t *testing.T, b *bench) {
	gpus := b.gpus(t)
	for _, d := range gpus {
		b.read(t, d.UUID, steady()...)
	}
	release := sync.OnceFunc(b.Control.Hang(0))
	defer release()
	hung := make(chan struct{})
	go func() {
		defer close(hung)
		var v gpu.Values
		_ = b.Reader.Read(gpus[0].UUID, gpu.SetOf(steady()...), &v) // a reader may return an error
	}()
	free := make(chan error, 1)
	go func() {
		var v gpu.Values
		for range 5 {
			if err := b.Reader.Read(gpus[1].UUID, gpu.SetOf(steady()...), &v); err != nil {
				free <- err
				return
			}
		}
		b.Reader.XIDs(gpus[0].UUID) // never blocks
		free <- nil
	}()
	select {
	case err := <-free:
		if err != nil {
			t.Errorf("GPU 1, while GPU 0 hangs: %v", err)
		}
	case <-time.After(patience):
		t.Error("GPU 1 hangs with GPU 0")
	}
	release()
	select {
	case <-hung:
	case <-time.After(patience):
		t.Fatal("the read of GPU 0 did not return after the hang")
	}
	eventually(t, func() string {
		var v gpu.Values
		if err := b.Reader.Read(gpus[0].UUID, gpu.SetOf(steady()...), &v); err != nil {
			return err.Error()
		}
		return ""
	})
}

// driverLate starts without a driver.
func driverLate(t *testing.T, b *bench) {
	b.Control.UnloadDriver()
	for range 2 {
		if devices, err := b.Reader.Devices(); !errors.Is(err, gpu.ErrNoDriver) || devices != nil {
			t.Fatalf("Devices = %v, %v; want nil, ErrNoDriver", devices, err)
		}
	}
	b.Control.LoadDriver()
	eventually(t, func() string {
		if _, err := b.Reader.Devices(); err != nil {
			return err.Error()
		}
		return ""
	})
	b.healthy(t, b.gpus(t)[0].UUID)
}

// driverGoes unloads the driver of a working reader.
func driverGoes(t *testing.T, b *bench) {
	gpus := b.gpus(t)
	b.healthy(t, gpus[0].UUID)
	b.Control.UnloadDriver()
	var v gpu.Values
	if err := b.Reader.Read(gpus[0].UUID, gpu.AllFields(), &v); err == nil || !empty(&v) {
		t.Errorf("reading without a driver: error %v, fields %v, labels %v", err, v.Fields(), labels(&v))
	}
	eventually(t, func() string {
		if devices, err := b.Reader.Devices(); !errors.Is(err, gpu.ErrNoDriver) || devices != nil {
			return "the driver's absence is not seen"
		}
		return ""
	})
	b.Control.LoadDriver()
	eventually(t, func() string {
		if _, err := b.Reader.Devices(); err != nil {
			return err.Error()
		}
		return ""
	})
	if again := b.gpus(t); !reflect.DeepEqual(gpus, again) {
		t.Errorf("after the driver came back: %+v, before: %+v", again, gpus)
	}
	for _, d := range gpus {
		b.healthy(t, d.UUID)
	}
}

// closes compares the number of goroutines before a reader and after its Close.
func closes(t *testing.T, b *bench) {
	before := runtime.NumGoroutine()
	gpus := b.gpus(t)
	b.read(t, gpus[0].UUID, steady()...)
	b.close(t)
	eventually(t, func() string {
		if n := runtime.NumGoroutine(); n > before {
			buf := make([]byte, 1<<20)
			return string(buf[:runtime.Stack(buf, true)])
		}
		return ""
	})
	var v gpu.Values
	if err := b.Reader.Read(gpus[0].UUID, gpu.AllFields(), &v); err == nil || !empty(&v) {
		t.Errorf("a closed reader read something (error %v)", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/test/gputest"
)

// shortWait is for readers that are closed at once: that takes as long as a wait for an event.
const shortWait = 50 * time.Millisecond

func TestConformance(t *testing.T) {
	lib := library(t)
	gputest.Run(t, func(t *testing.T) gputest.Backend {
		f := newFake(t)
		return gputest.Backend{Reader: New(Config{Library: lib, eventWait: shortWait}), Control: f.control()}
	})
}

// TestOldLibrary runs the tests that hold for a library of 2018 too, which
// lacks GPM, MIG, field values and the second version of memory: in a process
// of its own.
func TestOldLibrary(t *testing.T) {
	if os.Getenv(variantEnv) != "" {
		t.Skip("this is that process")
	}
	library(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^(TestConformance|TestMemoryV1)$", "-test.v")
	cmd.Env = append(os.Environ(), variantEnv+"=old")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if testing.Verbose() {
		t.Logf("%s", out)
	}
}

// TestWithoutDriverVersion runs the conformance suite, in a process of its own,
// on a library that lacks nvmlSystemGetDriverVersion.
func TestWithoutDriverVersion(t *testing.T) {
	if os.Getenv(variantEnv) != "" {
		t.Skip("this is that process")
	}
	code, err := os.ReadFile(library(t))
	if err != nil {
		t.Fatal(err)
	}
	const symbol = "nvmlSystemGetDriverVersion"
	if !bytes.Contains(code, []byte(symbol)) {
		t.Fatalf("the fake library has no %s", symbol)
	}
	// Another name of the same length hides the symbol from the loader.
	code = bytes.ReplaceAll(code, []byte(symbol), []byte("nvmlSystemGetDriverVersioX"))
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if err := os.WriteFile(path, code, 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestConformance$", "-test.v")
	cmd.Env = append(os.Environ(), variantEnv+"="+path)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// reader opens a reader on a fake and enumerates.
func reader(t testing.TB, f *fake) (*Reader, []gpu.Device) {
	t.Helper()
	r := New(Config{Library: library(t), eventWait: shortWait})
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	devices, err := r.Devices()
	if err != nil {
		t.Fatalf("Devices: %v", err)
	}
	return r, devices
}

// read reads or ends the test.
func read(t testing.TB, r *Reader, uuid string, want ...gpu.FieldID) *gpu.Values {
	t.Helper()
	var v gpu.Values
	if err := r.Read(uuid, gpu.SetOf(want...), &v); err != nil {
		t.Fatalf("Read %s: %v", uuid, err)
	}
	return &v
}

// expect compares one value.
func expect(t testing.TB, v *gpu.Values, id gpu.FieldID, want float64) {
	t.Helper()
	if x, ok := v.Get(id); !ok || x < want-1e-6 || x > want+1e-6 {
		t.Errorf("%s = %v, %v; want %v", id, x, ok, want)
	}
}

// until asks each 20 ms for a minute at most: only a failure takes that long.
func until(t testing.TB, what string, ask func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !ask() {
		select {
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		case <-tick.C:
		}
	}
}

func TestNoLibrary(t *testing.T) {
	for _, path := range []string{"/nonexistent/libnvidia-ml.so.1", "libm.so.6", "nvml_test.go"} {
		r := New(Config{Library: path, eventWait: shortWait})
		for range 2 {
			devices, err := r.Devices()
			if devices != nil || !errors.Is(err, gpu.ErrNoLibrary) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: Devices = %v, %v; want ErrNoLibrary naming the path", path, devices, err)
			}
		}
		if err := r.Close(); err != nil {
			t.Errorf("%s: Close: %v", path, err)
		}
	}
}

func TestALibraryThatComesLater(t *testing.T) {
	newFake(t)
	lib := library(t)
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	r := New(Config{Library: path, eventWait: shortWait})
	defer func() { _ = r.Close() }()
	if _, err := r.Devices(); !errors.Is(err, gpu.ErrNoLibrary) {
		t.Fatalf("Devices: %v, want ErrNoLibrary", err)
	}
	if err := os.Symlink(lib, path); err != nil {
		t.Fatal(err)
	}
	if devices, err := r.Devices(); len(devices) != 3 || err != nil {
		t.Errorf("Devices = %d, %v; want three", len(devices), err)
	}
}

// A library whose waits for events fail has no XIDs to tell of.
func TestEventsThatFail(t *testing.T) {
	f := newFake(t)
	f.Put("events", "events-fail")
	r, devices := reader(t, f)
	until(t, "XID_ERRORS to be absent", func() bool { return !read(t, r, devices[0].UUID, gpu.XIDErrors).Has(gpu.XIDErrors) })
	f.Put("events", "")
	until(t, "XID_ERRORS to be there", func() bool { return read(t, r, devices[0].UUID, gpu.XIDErrors).Has(gpu.XIDErrors) })
	f.Put("xid", "gpu 0 xid 31")
	until(t, "XID 31", func() bool { return len(r.XIDs(devices[0].UUID)) == 1 })
}

// TestMemoryV1 is run on the old library: v1 counts what is reserved as used.
// Counters above 2^53 are exact, by a call of their own and in a batch.
func TestWholeNumbersAreExact(t *testing.T) {
	const large = 1<<53 + 1
	f := newFake(t)
	f.Put("energy", fmt.Sprintf("gpu 0 energy %d", large))
	f.Put("ecc", fmt.Sprintf("gpu 0 ecc_sbe_agg %d", large))
	f.Put("replay", fmt.Sprintf("gpu 0 viol_power %d", large))
	r, devices := reader(t, f)
	v := read(t, r, devices[0].UUID, gpu.TotalEnergy, gpu.ECCSBEAggregate, gpu.PowerViolation)
	for _, id := range []gpu.FieldID{gpu.TotalEnergy, gpu.ECCSBEAggregate, gpu.PowerViolation} {
		if n, ok := v.Number(id); !ok || n != gpu.Whole(large) {
			t.Errorf("%s = %+v, %v", id, n, ok)
		}
	}
}

// How a GPU is set up, and each link's bandwidth, NVML gives by itself.
func TestSettings(t *testing.T) {
	f := newFake(t)
	r, devices := reader(t, f)
	v := read(t, r, devices[0].UUID, computeMode, persistenceMode, bar1Total, bar1Used, bar1Free, powerLimitMin, powerLimitMax, powerLimitByDef, eccMode, eccModeAtRestart)
	for id, want := range map[gpu.FieldID]float64{
		computeMode: 0, persistenceMode: 1, bar1Total: 262144, bar1Used: 3, bar1Free: 262141,
		powerLimitMin: 200, powerLimitMax: 700, powerLimitByDef: 700, eccMode: 1, eccModeAtRestart: 1,
	} {
		expect(t, v, id, want)
	}
	if f.old {
		return // no MIG, and no bandwidth
	}
	f.Put("mig", "gpu 1 mig 1g.18gb 1")
	if _, err := r.Devices(); err != nil {
		t.Fatal(err)
	}
	expect(t, read(t, r, devices[0].UUID, migMode), migMode, 0)
	expect(t, read(t, r, devices[1].UUID, migMode), migMode, 1)
}

func TestBandwidthOfLinks(t *testing.T) {
	f := newFake(t)
	if f.old {
		t.Skip("an old library has no bandwidth")
	}
	f.Set(0, "nvlink0_tx", 2e6)
	r, devices := reader(t, f)
	read(t, r, devices[0].UUID, linkBandwidth[:]...)
	d := r.Known()[devices[0].UUID]
	for i := range d.fields.links {
		d.fields.links[i].at = d.fields.links[i].at.Add(-time.Second) // as if it were long ago
	}
	v := read(t, r, devices[0].UUID, linkBandwidth[:]...)
	if got, want := v.Fields(), gpu.SetOf(linkBandwidth[:]...); got != want {
		t.Errorf("given %v, want %v", got, want)
	}
}

func TestMemoryV1(t *testing.T) {
	f := newFake(t)
	f.Set(0, "fb_reserved", 614)
	f.Set(0, "fb_used", 1000)
	if !f.old {
		f.Put("v2", "gpu 0 fail GetMemoryInfo_v2 NOT_SUPPORTED")
	}
	r, devices := reader(t, f)
	v := read(t, r, devices[0].UUID, gpu.FBTotal, gpu.FBFree, gpu.FBUsed, gpu.FBReserved, gpu.FBUsedPercent)
	expect(t, v, gpu.FBTotal, 143771)
	expect(t, v, gpu.FBUsed, 1614)
	expect(t, v, gpu.FBFree, 143771-1614)
	if v.Has(gpu.FBReserved) {
		t.Error("v1 gave a reserved size")
	}
}

func TestOneOddCallLosesNoGPU(t *testing.T) {
	f := newFake(t)
	f.Put("odd", "gpu 0 fail GetUtilizationRates GPU_IS_LOST")
	r, devices := reader(t, f)
	for _, want := range [][]gpu.FieldID{{gpu.GPUUtil}, {gpu.GPUUtil, gpu.PowerUsage}} {
		if v := read(t, r, devices[0].UUID, want...); v.Has(gpu.GPUUtil) {
			t.Error("a failed call gave a value")
		}
	}
	expect(t, read(t, r, devices[0].UUID, gpu.GPUUtil, gpu.PowerUsage), gpu.PowerUsage, 77.7)
}

func TestUnknownErrorsEverywhereAreALostGPU(t *testing.T) {
	f := newFake(t)
	r, devices := reader(t, f)
	for _, fn := range []string{"GetTemperature", "GetPowerUsage", "GetMemoryInfo_v2", "GetMemoryInfo", "GetUtilizationRates"} {
		f.Put(fn, "gpu 0 fail "+fn+" UNKNOWN")
	}
	var v gpu.Values
	for _, want := range []gpu.FieldSet{gpu.AllFields(), gpu.SetOf(gpu.TotalEnergy), gpu.SetOf(gpu.Serial)} {
		if err := r.Read(devices[0].UUID, want, &v); !errors.Is(err, gpu.ErrLost) {
			t.Errorf("Read: %v, want ErrLost", err)
		}
	}
	read(t, r, devices[1].UUID, gpu.GPUUtil)
}

func TestAGPULostFromTheStart(t *testing.T) {
	f := newFake(t)
	f.Put("lost", "gpu 1 lost")
	r := New(Config{Library: library(t), eventWait: shortWait})
	defer func() { _ = r.Close() }()
	devices, err := r.Devices()
	if len(devices) != 2 || !errors.Is(err, gpu.ErrLost) || !strings.Contains(err.Error(), "GPU 1") {
		t.Fatalf("Devices = %d, %v; want two, and an error that names GPU 1", len(devices), err)
	}
	f.Put("lost", "")
	if devices, err = r.Devices(); len(devices) != 3 || err != nil {
		t.Fatalf("after it came back: %d, %v", len(devices), err)
	}
	read(t, r, devices[1].UUID, gpu.GPUUtil)
}

func TestXIDOfAGPUThatFallsOffTheBus(t *testing.T) {
	f := newFake(t)
	r, devices := reader(t, f)
	f.Put("fall", "gpu 1 lost\ngpu 1 xid 79")
	until(t, "XID 79", func() bool { return len(r.XIDs(devices[1].UUID)) == 1 })
	f.Put("fall", "gpu 1 xid 79")
	until(t, "recovery", func() bool {
		var v gpu.Values
		return r.Read(devices[1].UUID, gpu.SetOf(gpu.XIDErrors), &v) == nil && v.Has(gpu.XIDErrors)
	})
	f.Put("more", "gpu 1 xid 31")
	until(t, "XID 31 after the recovery", func() bool { return len(r.XIDs(devices[1].UUID)) == 2 })
	for _, c := range r.XIDs(devices[1].UUID) {
		if c.Count != 1 {
			t.Errorf("XID %d counted %d times", c.Code, c.Count)
		}
	}
}

func TestEventsThatComeOnlyAfterAnotherCall(t *testing.T) {
	f := newFake(t)
	f.Put("lazy", "lazy-events")
	r, devices := reader(t, f)
	f.Put("xid", "gpu 0 xid 48")
	until(t, "XID 48", func() bool {
		read(t, r, devices[2].UUID, gpu.GPUUtil)
		return len(r.XIDs(devices[0].UUID)) == 1
	})
}

func TestMIG(t *testing.T) {
	f := newFake(t)
	f.Put("mig", "gpu 0 mig 1g.18gb 2\ngpu 0 mig 2g.35gb 1")
	f.Put("used", "gpu 0 instance 1 fb_used 777\ngpu 0 instance 1 gpm_sm 0.25\ngpu 0 instance 2 gpm_sm 0.75\ngpu 0 util 99")
	// Drivers before 470 do not put the profile into the name.
	f.Put("name", "gpu 1 mig 3g.71gb\ngpu 1 fail GetName NOT_SUPPORTED")
	r, devices := reader(t, f)
	var profiles []string
	for _, d := range devices {
		if d.MIG != nil {
			profiles = append(profiles, d.MIG.Profile)
		}
	}
	if want := []string{"1g.18gb", "1g.18gb", "2g.35gb", "3g.71gb"}; !slices.Equal(profiles, want) {
		t.Fatalf("profiles %v, want %v", profiles, want)
	}
	if v := read(t, r, devices[0].UUID, gpu.GPUUtil, gpu.FBTotal); v.Has(gpu.GPUUtil) || !v.Has(gpu.FBTotal) {
		t.Error("the parent has a utilisation, or no memory")
	}
	expect(t, read(t, r, devices[2].UUID, gpu.FBUsed), gpu.FBUsed, 777)
	for i, want := range map[int]float64{2: 0.25, 3: 0.75} {
		var v *gpu.Values
		until(t, "GPM of an instance", func() bool {
			v = read(t, r, devices[i].UUID, gpu.SMActive, gpu.PowerUsage, gpu.DriverVersion)
			return v.Has(gpu.SMActive)
		})
		expect(t, v, gpu.SMActive, want)
		if x, ok := v.Get(gpu.PowerUsage); !ok || x != 77.7 {
			t.Errorf("an instance's power is %v, %v: it is its GPU's", x, ok)
		}
		if s, _ := v.GetLabel(gpu.DriverVersion); s != "590.48.01" {
			t.Errorf("driver version %q", s)
		}
	}
	f.Put("xid", "gpu 0 xid 43 8")
	until(t, "the instance's XID", func() bool { return len(r.XIDs(devices[2].UUID)) == 1 })
	if x := r.XIDs(devices[0].UUID); len(x) != 0 {
		t.Errorf("the instance's XID is also its GPU's: %v", x)
	}
	f.Put("used", "")
	f.Put("mig", "gpu 0 mig 1g.18gb 1")
	if again, err := r.Devices(); err != nil || len(again) != 5 {
		t.Errorf("after two instances were destroyed: %d devices, %v", len(again), err)
	}
	var v gpu.Values
	if err := r.Read(devices[3].UUID, gpu.AllFields(), &v); !errors.Is(err, gpu.ErrUnknownDevice) {
		t.Errorf("reading a destroyed instance: %v", err)
	}
}

func TestGPMKeepsItsLastBetweenSamples(t *testing.T) {
	f := newFake(t)
	f.Set(0, "gpm_sm", 0.5)
	r, devices := reader(t, f)
	if v := read(t, r, devices[0].UUID, gpu.SMActive); v.Has(gpu.SMActive) {
		t.Error("one sample gave a value")
	}
	until(t, "a second sample", func() bool { return read(t, r, devices[0].UUID, gpu.SMActive).Has(gpu.SMActive) })
	for range 5 {
		expect(t, read(t, r, devices[0].UUID, gpu.SMActive), gpu.SMActive, 0.5)
	}
}

func TestPCIeThroughputBeforeHopper(t *testing.T) {
	f := newFake(t)
	f.Put("gpm", "gpu 0 unsupported gpm\ngpu 0 pcie_tx_kb 488\ngpu 0 pcie_rx_kb 341")
	r, devices := reader(t, f)
	for range 2 {
		v := read(t, r, devices[0].UUID, gpu.PCIeTxBytes, gpu.PCIeRxBytes, gpu.SMActive)
		expect(t, v, gpu.PCIeTxBytes, 488_000)
		expect(t, v, gpu.PCIeRxBytes, 341_000)
		if v.Has(gpu.SMActive) {
			t.Error("a GPU before Hopper has an SM activity")
		}
	}
}

func TestARefusedBatch(t *testing.T) {
	for _, code := range []string{"INVALID_ARGUMENT", "NOT_SUPPORTED"} {
		t.Run(code, func(t *testing.T) {
			f := newFake(t)
			f.Put("batch", "gpu 0 fail GetFieldValues "+code)
			f.Set(0, "ecc_dbe_agg", 3)
			f.Set(0, "viol_thermal", 12345)
			r, devices := reader(t, f)
			v := read(t, r, devices[0].UUID, gpu.ECCDBEAggregate, gpu.ThermalViolation, gpu.MemoryTemp)
			expect(t, v, gpu.ECCDBEAggregate, 3)
			expect(t, v, gpu.ThermalViolation, 12345)
			if v.Has(gpu.MemoryTemp) {
				t.Error("a refused field id gave a value")
			}
		})
	}
}

func TestUnsupportedIsAskedForAgain(t *testing.T) {
	f := newFake(t)
	f.Put("power", "gpu 0 unsupported power")
	f.Put("temp", "gpu 0 unsupported mem_temp")
	r, devices := reader(t, f)
	want := []gpu.FieldID{gpu.PowerUsage, gpu.MemoryTemp}
	read(t, r, devices[0].UUID, want...)
	f.Put("power", "gpu 0 power 300")
	f.Put("temp", "gpu 0 mem_temp 60")
	if v := read(t, r, devices[0].UUID, want...); v.Has(gpu.PowerUsage) || v.Has(gpu.MemoryTemp) {
		t.Error("asked for again at once")
	}
	d := r.Known()[devices[0].UUID]
	clear(d.refused) // as when vendorlib.RetryUnsupported has passed
	clear(d.fields.refused[:])
	v := read(t, r, devices[0].UUID, want...)
	expect(t, v, gpu.PowerUsage, 300)
	expect(t, v, gpu.MemoryTemp, 60)
}

func TestLabels(t *testing.T) {
	f := newFake(t)
	r, devices := reader(t, f)
	v := read(t, r, devices[1].UUID, gpu.DriverVersion, gpu.NVMLVersion, gpu.CUDADriverVersion, gpu.Brand, gpu.Serial,
		gpu.MinorNumber, gpu.OEMInforomVersion, gpu.ECCInforomVersion, gpu.InforomImageVersion, gpu.VBIOSVersion)
	for id, want := range map[gpu.FieldID]string{
		gpu.DriverVersion: "590.48.01", gpu.NVMLVersion: "13.590.48.01", gpu.CUDADriverVersion: "13010", gpu.Brand: "NVIDIA",
		gpu.Serial: "1650024000001", gpu.MinorNumber: "1", gpu.OEMInforomVersion: "2.1", gpu.ECCInforomVersion: "7.16",
		gpu.InforomImageVersion: "G520.0280.00.05", gpu.VBIOSVersion: "96.00.BC.00.01",
	} {
		if got, _ := v.GetLabel(id); got != want {
			t.Errorf("%s = %q, want %q", id, got, want)
		}
	}
}

func TestEnergyAddsUp(t *testing.T) {
	f := newFake(t)
	f.Set(0, "power", 500)
	r, devices := reader(t, f)
	before, _ := read(t, r, devices[0].UUID, gpu.TotalEnergy).Get(gpu.TotalEnergy)
	until(t, "energy", func() bool {
		after, _ := read(t, r, devices[0].UUID, gpu.TotalEnergy).Get(gpu.TotalEnergy)
		return after > before+10
	})
}

// A close while a read hangs ends well when the hang does.
func TestCloseDuringAHang(t *testing.T) {
	f := newFake(t)
	r := New(Config{Library: library(t), eventWait: shortWait})
	devices, err := r.Devices()
	if err != nil {
		t.Fatal(err)
	}
	f.Put("hang", "gpu 0 hang 60000")
	hung := make(chan struct{})
	go func() {
		defer close(hung)
		var v gpu.Values
		_ = r.Read(devices[0].UUID, gpu.SetOf(gpu.GPUUtil), &v) // it may or may not be in time
	}()
	until(t, "the read to hang", func() bool {
		s, ok := r.Opened()
		return ok && s.Inside() == 2 // the read and the events goroutine
	})
	closed := make(chan error, 1)
	go func() { closed <- r.Close() }()
	f.Put("hang", "")
	<-hung
	if err := <-closed; err != nil {
		t.Errorf("Close: %v", err)
	}
	var v gpu.Values
	if err := r.Read(devices[0].UUID, gpu.SetOf(gpu.GPUUtil), &v); err == nil {
		t.Error("a closed reader reads")
	}
	if _, err := r.Devices(); err == nil {
		t.Error("a closed reader enumerates")
	}
}

func TestAHungGPUDoesNotHangEnumeration(t *testing.T) {
	f := newFake(t)
	f.Put("mig", "gpu 0 mig 1g.18gb 2")
	r, devices := reader(t, f)
	f.Put("hang", "gpu 0 hang 60000")
	hung := make(chan struct{})
	go func() {
		defer close(hung)
		var v gpu.Values
		_ = r.Read(devices[0].UUID, gpu.SetOf(gpu.GPUTemp), &v)
	}()
	d := r.Known()[devices[0].UUID]
	until(t, "the read to hang", func() bool { return d.Elapsed(time.Now()) > hungAfter })
	f.Put("new", "gpu 2 mig 2g.35gb 1")
	again, err := r.Devices()
	if err != nil || len(again) != len(devices)+1 {
		t.Errorf("Devices = %d, %v; want %d with the new instance", len(again), err, len(devices)+1)
	}
	for i, want := range devices {
		if again[i].UUID != want.UUID {
			t.Errorf("device %d: %s, before: %s", i, again[i].UUID, want.UUID)
		}
	}
	f.Put("hang", "")
	<-hung
}

// What there is once for the board is each instance's, and read once for all.
func TestInstancesBorrowFromTheirGPU(t *testing.T) {
	f := newFake(t)
	f.Put("mig", "gpu 0 mig 1g.18gb 2")
	r, devices := reader(t, f)
	expect(t, read(t, r, devices[1].UUID, gpu.GPUTemp, gpu.SMClock), gpu.GPUTemp, 28)
	whole := r.Known()[devices[0].UUID]
	whole.loan.at = time.Now().Add(time.Hour) // it stays young, however busy the machine
	f.Put("temp", "gpu 0 temp 61")
	expect(t, read(t, r, devices[2].UUID, gpu.GPUTemp), gpu.GPUTemp, 28)
	whole.loan.at = time.Time{}
	v := read(t, r, devices[2].UUID, gpu.GPUTemp, gpu.GPUUtil)
	expect(t, v, gpu.GPUTemp, 61)
	if v.Has(gpu.GPUUtil) {
		t.Error("an instance has its GPU's utilisation")
	}
}

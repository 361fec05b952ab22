// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/test/gputest"
)

func TestConformance(t *testing.T) {
	for name, remote := range map[string]string{"embedded": "", "remote": "tcp://127.0.0.1:5555"} {
		t.Run(name, func(t *testing.T) {
			gputest.Run(t, func(t *testing.T) gputest.Backend {
				f := newFake(t)
				return gputest.Backend{Reader: New(Config{Library: library(t), Remote: remote, MIGUUID: migUUID}), Control: f.Control(keys)}
			})
		})
	}
}

// reader opens a reader over the fake and enumerates.
func reader(t testing.TB, cfg Config) (*Reader, []gpu.Device) {
	t.Helper()
	cfg.Library = library(t)
	r := New(cfg)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	devices, err := r.Devices()
	if err != nil {
		t.Fatal(err)
	}
	return r, devices
}

func read(t testing.TB, r *Reader, uuid string, want ...gpu.FieldID) *gpu.Values {
	t.Helper()
	var v gpu.Values
	if err := r.Read(uuid, gpu.SetOf(want...), &v); err != nil {
		t.Fatal(err)
	}
	return &v
}

// logged are the lines that the fake writes while do runs.
func logged(t testing.TB, f *gputest.Scenario, do func()) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log")
	f.Put("log", "log "+path)
	do()
	f.Put("log", "")
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}

// A host engine that is gone is ErrNoDriver; when it is back, so are the GPUs.
func TestReconnects(t *testing.T) {
	f := newFake(t)
	r, devices := reader(t, Config{Remote: "unix:///run/nvidia/hostengine.sock"})
	read(t, r, devices[0].UUID, gpu.GPUUtil)
	f.Put("engine", "engine lost")
	var v gpu.Values
	if err := r.Read(devices[0].UUID, gpu.SetOf(gpu.GPUUtil), &v); !errors.Is(err, gpu.ErrNoDriver) || v.Has(gpu.GPUUtil) {
		t.Errorf("Read without a host engine: %v", err)
	}
	for range 3 {
		if list, err := r.Devices(); !errors.Is(err, gpu.ErrNoDriver) || list != nil {
			t.Errorf("Devices without a host engine: %v, %v", list, err)
		}
	}
	f.Put("engine", "")
	again, err := r.Devices()
	if err != nil || !cmp.Equal(devices, again) {
		t.Fatalf("after it came back: %v, %v", again, err)
	}
	f.Set(0, "util", 63)
	if x, ok := read(t, r, devices[0].UUID, gpu.GPUUtil).Get(gpu.GPUUtil); !ok || x != 63 {
		t.Errorf("GPU_UTIL = %v, %v", x, ok)
	}
}

// An engine that was restarted between two enumerations costs neither.
func TestSurvivesARestartOfTheEngine(t *testing.T) {
	f := newFake(t)
	r, devices := reader(t, Config{})
	f.Put("engine", "engine restarted 1")
	if again, err := r.Devices(); err != nil || !cmp.Equal(devices, again) {
		t.Fatalf("Devices: %v, %v", again, err)
	}
	read(t, r, devices[0].UUID, gpu.GPUUtil)
}

// Labels, which are cached, do not hide that the engine has gone.
func TestLabelsDoNotHideALoss(t *testing.T) {
	f := newFake(t)
	r, devices := reader(t, Config{})
	if s, ok := read(t, r, devices[0].UUID, gpu.DriverVersion).GetLabel(gpu.DriverVersion); !ok || s != "590.48.01" {
		t.Errorf("driver version %q, %v", s, ok)
	}
	f.Put("engine", "engine lost")
	var v gpu.Values
	if err := r.Read(devices[0].UUID, gpu.SetOf(gpu.DriverVersion), &v); !errors.Is(err, gpu.ErrNoDriver) {
		t.Errorf("Read: %v", err)
	}
}

// A field without a name of its own here is read like the others.
func TestFieldsOfDCGMAlone(t *testing.T) {
	newFake(t).Put("lacks", "gpu 2 lacks 90")
	r, devices := reader(t, Config{})
	const nvmlIndex, bar1 gpu.FieldID = 52, 90
	v := read(t, r, devices[2].UUID, nvmlIndex, bar1, gpu.GPUTemp)
	if x, ok := v.Get(nvmlIndex); !ok || x != 2 || v.Has(bar1) || !v.Has(gpu.GPUTemp) {
		t.Errorf("NVML index %v, %v; BAR1, which the GPU lacks: %v", x, ok, v.Has(bar1))
	}
}

// Counters above 2^53 are exact. DCGM's blanks of 32 bits are no values, no labels
// and no XIDs, although their type has 64 bits.
func TestWholeNumbers(t *testing.T) {
	f := newFake(t)
	f.Put("large", "gpu 0 energy 9007199254740993")
	f.Put("largest", "gpu 0 pcie_replay 9223372036854775791")
	for i, blank := range []string{"2147483632", "2147483633", "2147483634", "2147483635", "2147483647", "9223372036854775792"} {
		f.Put(fmt.Sprint("blank", i), fmt.Sprintf("gpu 0 %s %s", []string{"util", "mem_util", "enc_util", "dec_util", "pstate", "temp"}[i], blank))
	}
	r, devices := reader(t, Config{})
	v := read(t, r, devices[0].UUID, gpu.TotalEnergy, gpu.PCIeReplayCounter, gpu.GPUUtil, gpu.MemCopyUtil, gpu.EncUtil, gpu.DecUtil, gpu.PState, gpu.GPUTemp)
	if got := v.Fields(); got != gpu.SetOf(gpu.TotalEnergy, gpu.PCIeReplayCounter) {
		t.Errorf("given: %v", got)
	}
	for id, want := range map[gpu.FieldID]int64{gpu.TotalEnergy: 9007199254740993, gpu.PCIeReplayCounter: 9223372036854775791} {
		if n, _ := v.Number(id); n != gpu.Whole(want) {
			t.Errorf("%s = %+v, want %d", id, n, want)
		}
	}
}

func TestBlanksAreNoXIDs(t *testing.T) {
	f := newFake(t)
	f.Put("before", "gpu 0 xid 2147483632")
	r, devices := reader(t, Config{})
	uuid := devices[0].UUID
	read(t, r, uuid, gpu.XIDErrors)
	for i, code := range []string{"2147483632", "2147483635", "9223372036854775792", "9223372036854775794", "-1", "10000", "79"} {
		f.Put(fmt.Sprint("xid", i), "gpu 0 xid "+code)
	}
	v := read(t, r, uuid, gpu.XIDErrors)
	if x, ok := v.Get(gpu.XIDErrors); !ok || x != 79 {
		t.Errorf("XID_ERRORS = %v, %v", x, ok)
	}
	if all := r.XIDs(uuid); len(all) != 1 || all[0].Code != 79 || all[0].Count != 1 {
		t.Errorf("XIDs %+v", all)
	}
}

// Two samples are kept, not ten minutes of them; nothing is watched or updated
// twice, and a second read is two calls.
func TestWatches(t *testing.T) {
	f := newFake(t)
	r, devices := reader(t, Config{Interval: 500 * time.Millisecond})
	want := []gpu.FieldID{gpu.GPUUtil, gpu.FBUsed, gpu.TensorActive, gpu.DriverVersion}
	first := logged(t, f, func() { read(t, r, devices[1].UUID, want...) })
	wantFirst := "- watch fields=1 first=230 every_us=500000 age_s=60 samples=0\n- UpdateAllFields\n" +
		"- watch fields=2 first=203 every_us=500000 age_s=0 samples=2\n- UpdateAllFields\n" +
		"- watch fields=1 first=1004 every_us=500000 age_s=0 samples=2\n- UpdateAllFields\n" +
		"1 EntityGetLatestValues\n" +
		"1 EntitiesGetLatestValues\n"
	if diff := cmp.Diff(wantFirst, first); diff != "" {
		t.Errorf("the first read (-want +got):\n%s", diff)
	}
	second := logged(t, f, func() { read(t, r, devices[1].UUID, want...) })
	if second != "1 EntityGetLatestValues\n" {
		t.Errorf("the second read called:\n%s", second)
	}
}

// Each GPU is asked what it gives: the first does not decide for the rest.
func TestMixedModels(t *testing.T) {
	f := newFake(t)
	f.Put("a", "gpu 0 unsupported gpm")
	f.Put("b", "gpu 0 model NVIDIA GeForce RTX 4090")
	f.Put("c", "gpu 1 unsupported gpm_fp64")
	var log bytes.Buffer
	r, devices := reader(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	has := func(i int, want ...gpu.FieldID) {
		t.Helper()
		v := read(t, r, devices[i].UUID, gpu.GPUUtil, gpu.SMActive, gpu.FP64Active)
		if got := v.Fields(); got != gpu.SetOf(want...) {
			t.Errorf("GPU %d (%s) gives %v, want %v", i, devices[i].Model, got, want)
		}
	}
	for range 2 {
		has(0, gpu.GPUUtil)
		has(1, gpu.GPUUtil, gpu.SMActive)
		has(2, gpu.GPUUtil, gpu.SMActive, gpu.FP64Active)
	}
	if devices[0].Model != "NVIDIA GeForce RTX 4090" || devices[1].Model != "NVIDIA H200" {
		t.Errorf("models %q and %q", devices[0].Model, devices[1].Model)
	}
	if n := strings.Count(log.String(), "GPU gives no profiling fields"); n != 1 || !strings.Contains(log.String(), "Profiling is not supported") {
		t.Errorf("said %d times:\n%s", n, &log)
	}
}

// DCGM's own verdicts are asked for, once it is told to watch; the worst of a
// system counts, and each GPU has its own.
func TestHealth(t *testing.T) {
	f := newFake(t)
	r, devices := reader(t, Config{})
	verdicts := func(i int) gpu.Verdicts {
		t.Helper()
		v, err := r.Health(devices[i].UUID)
		if err != nil {
			t.Fatal(err)
		}
		return *v
	}
	calls := logged(t, f, func() {
		if v := verdicts(1); v != (gpu.Verdicts{}) {
			t.Errorf("a GPU that is well: %+v", v)
		}
		verdicts(1)
	})
	if want := "- HealthSet ffffffff\n- HealthCheck\n- HealthCheck\n"; calls != want {
		t.Errorf("called\n%swant\n%s", calls, want)
	}
	f.Put("mem", "gpu 1 health MEM 20 80\ngpu 1 health MEM 10 83")
	f.Put("inforom", "gpu 1 health INFOROM 10 9")
	f.Put("all", "gpu 1 health ALL 20 120")
	f.Put("new", "gpu 1 health THERMAL 10 4711")
	f.Put("other", "gpu 0 health SM 20 1")
	want := gpu.Verdicts{
		gpu.WatchMem:     {Health: gpu.HealthFail, Code: "DCGM_FR_ROW_REMAP_FAILURE"},
		gpu.WatchInforom: {Health: gpu.HealthWarn, Code: "DCGM_FR_CORRUPT_INFOROM"},
		gpu.WatchAll:     {Health: gpu.HealthFail, Code: "DCGM_FR_FALLEN_OFF_BUS"},
		gpu.WatchThermal: {Health: gpu.HealthWarn, Code: "DCGM_FR_UNKNOWN(4711)"},
	}
	if diff := cmp.Diff(want, verdicts(1)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := r.Health("GPU-none"); !errors.Is(err, gpu.ErrUnknownDevice) {
		t.Errorf("a GPU that is not there: %v", err)
	}
	f.Put("engine", "engine lost")
	if _, err := r.Health(devices[1].UUID); !errors.Is(err, gpu.ErrNoDriver) {
		t.Errorf("without a host engine: %v", err)
	}
}

// While no read of a GPU returns, its errors are asked for all the same.
func TestXIDsWithoutReads(t *testing.T) {
	f := newFake(t)
	r, devices := reader(t, Config{Interval: 10 * time.Millisecond})
	read(t, r, devices[1].UUID, gpu.XIDErrors)
	f.Put("xid", "gpu 1 xid 119")
	deadline := time.After(time.Minute)
	for len(r.XIDs(devices[1].UUID)) == 0 {
		select {
		case <-deadline:
			t.Fatal("XID 119 is not counted")
		case <-time.After(time.Millisecond):
		}
	}
}

// The profiling module may be missing, in use, or not allowed.
func TestNoProfiling(t *testing.T) {
	for _, code := range []string{"MODULE_NOT_LOADED", "REQUIRES_ROOT", "IN_USE", "-37"} {
		f := newFake(t)
		f.Put("profiling", "profiling "+code)
		r, devices := reader(t, Config{})
		v := read(t, r, devices[0].UUID, gpu.GPUUtil, gpu.SMActive)
		if got := v.Fields(); got != gpu.SetOf(gpu.GPUUtil) {
			t.Errorf("%s: %v", code, got)
		}
	}
}

// Values that DCGM no longer updates are not shown as if they were new.
func TestStaleValues(t *testing.T) {
	f := newFake(t)
	r, devices := reader(t, Config{})
	d := r.Known()[devices[0].UUID]
	f.Put("stale", "gpu 0 stale")
	read(t, r, devices[0].UUID, gpu.GPUUtil)
	read(t, r, devices[0].UUID, gpu.GPUUtil)
	d.clock.changed = d.clock.changed.Add(-6 * time.Second)
	var v gpu.Values
	if err := r.Read(devices[0].UUID, gpu.SetOf(gpu.GPUUtil), &v); err == nil || v.Has(gpu.GPUUtil) || !strings.Contains(err.Error(), "not updated") {
		t.Errorf("Read: %v", err)
	}
	read(t, r, devices[1].UUID, gpu.GPUUtil)
	f.Put("stale", "")
	read(t, r, devices[0].UUID, gpu.GPUUtil)
}

// What DCGM has stopped watching is watched again, but not at each read.
func TestWatchesAgain(t *testing.T) {
	f := newFake(t)
	r, devices := reader(t, Config{})
	d := r.Known()[devices[0].UUID]
	read(t, r, d.UUID, gpu.GPUUtil)
	f.Put("engine", "engine forgets 1")
	for range 3 {
		if v := read(t, r, d.UUID, gpu.GPUUtil); v.Has(gpu.GPUUtil) {
			t.Fatal("what is not watched was read")
		}
	}
	d.watch.since = d.watch.since.Add(-2 * rewatchEvery)
	read(t, r, d.UUID, gpu.GPUUtil)
	if v := read(t, r, d.UUID, gpu.GPUUtil); !v.Has(gpu.GPUUtil) {
		t.Error("it is not watched again")
	}
}

// Instances have their own memory and profiling values; without a word on
// their UUIDs they have NVIDIA's older form.
func TestInstances(t *testing.T) {
	f := newFake(t)
	f.Put("mig", "gpu 1 mig 1g.18gb 2")
	f.Put("tensor", "gpu 1 instance 1 gpm_tensor 0.5")
	f.Put("temp", "gpu 1 temp 61")
	r, devices := reader(t, Config{})
	if len(devices) != 5 {
		t.Fatalf("%d devices", len(devices))
	}
	d := devices[3]
	want := gpu.Device{
		Index: 1, Minor: 1, UUID: "MIG-" + devices[1].UUID + "/8/0", PCIBusID: "00000000:19:00.0", Model: "NVIDIA H200",
		MIG: &gpu.MIG{ParentUUID: devices[1].UUID, GPUInstance: 8, ComputeInstance: -1, Profile: "1g.18gb"},
	}
	if diff := cmp.Diff(want, d); diff != "" {
		t.Errorf("instance (-want +got):\n%s", diff)
	}
	if id, ok := gpu.ParseDeviceID(d.UUID); !ok || !id.Matches(&d) {
		t.Errorf("%s is no device id", d.UUID)
	}
	v := read(t, r, d.UUID, gpu.TensorActive, gpu.GPUTemp, gpu.GPUUtil)
	if x, ok := v.Get(gpu.TensorActive); !ok || x != 0.5 {
		t.Errorf("tensor %v, %v", x, ok)
	}
	if x, ok := v.Get(gpu.GPUTemp); !ok || x != 61 {
		t.Errorf("temperature %v, %v", x, ok)
	}
	if v.Has(gpu.GPUUtil) {
		t.Error("an instance has no GPU_UTIL")
	}
	f.Put("mig", "")
	f.Put("tensor", "")
	if err := r.Read(d.UUID, gpu.SetOf(gpu.TensorActive), &gpu.Values{}); err == nil {
		t.Error("an instance that is gone was read")
	}
	if again, err := r.Devices(); err != nil || len(again) != 3 {
		t.Errorf("after MIG was switched off: %v, %v", again, err)
	}
}

func TestNoLibrary(t *testing.T) {
	for _, path := range []string{filepath.Join(t.TempDir(), "libdcgm.so.4"), "libm.so.6"} {
		r := New(Config{Library: path})
		if devices, err := r.Devices(); !errors.Is(err, gpu.ErrNoLibrary) || devices != nil {
			t.Errorf("%s: %v, %v", path, devices, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAddresses(t *testing.T) {
	f := func(remote, want string) {
		t.Helper()
		address, how := parseAddress(remote)
		if got := address + []string{" tcp", " unix", " url"}[how]; got != want {
			t.Errorf("%s: %s, want %s", remote, got, want)
		}
	}
	f("localhost:5555", "localhost:5555 tcp")
	f("dcgm", "dcgm tcp")
	f("tcp://10.0.0.1:5555", "10.0.0.1:5555 tcp")
	f("unix:///run/he.sock", "/run/he.sock unix")
	f("/run/he.sock", "/run/he.sock unix")
	f("vsock://2:5555", "vsock://2:5555 url")
}

func TestConnectsWhereItIsTold(t *testing.T) {
	f := newFake(t)
	for remote, want := range map[string]string{
		"": "- embedded\n", "localhost:5555": "- connect localhost:5555\n", "unix:///run/he.sock": "- connect unix /run/he.sock\n",
	} {
		log := logged(t, f, func() {
			r, _ := reader(t, Config{Remote: remote})
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
		if first, _, _ := strings.Cut(log, "\n"); first+"\n" != want {
			t.Errorf("%q: %q, want %q", remote, first, want)
		}
	}
}

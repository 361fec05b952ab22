// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// calls are the functions that were called on GPU 0 during do, sorted.
func calls(t *testing.T, f *fake, do func()) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "calls")
	f.Put("log", "log "+path)
	do()
	f.Put("log", "")
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "0 "); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func TestOnlyWhatIsWantedIsAskedFor(t *testing.T) {
	f := newFake(t)
	r, devices := reader(t, f)
	asked := func(want []gpu.FieldID, wantCalls ...string) {
		t.Helper()
		read(t, r, devices[0].UUID, want...) // learns what is not supported
		got := calls(t, f, func() { read(t, r, devices[0].UUID, want...) })
		if !slices.Equal(got, wantCalls) {
			t.Errorf("for %v called %v, want %v", want, got, wantCalls)
		}
	}
	one := func(ids ...gpu.FieldID) []gpu.FieldID { return ids }
	asked(one())
	asked(one(gpu.PowerUsage), "GetPowerUsage")
	asked(one(gpu.GPUUtil, gpu.MemCopyUtil), "GetUtilizationRates")
	asked(one(gpu.FBUsed, gpu.FBFree), "GetMemoryInfo_v2")
	// Where nothing wanted says whether the GPU lives, one call more does.
	asked(one(gpu.TotalEnergy), "GetTemperature", "GetTotalEnergyConsumption")
	asked(one(gpu.DriverVersion), "GetTemperature")
	// A field that is not supported is not asked for again.
	asked(one(gpu.FanSpeed, gpu.GPUTemp, gpu.RetiredDBE), "GetTemperature")
	// All field ids in one call.
	asked(one(gpu.GPUTemp, gpu.MemoryTemp, gpu.ThermalViolation, gpu.ECCDBEVolatile, gpu.NVLinkBandwidth), "GetFieldValues", "GetTemperature")
}

// The default fields cost at most one call each, and fewer where one gives
// several.
func TestCallsPerTick(t *testing.T) {
	f := newFake(t)
	r, devices := reader(t, f)
	var v gpu.Values
	tick := func() {
		if err := r.Read(devices[0].UUID, defaultFields(), &v); err != nil {
			t.Fatal(err)
		}
	}
	tick()
	if got := calls(t, f, tick); len(got) > 14 {
		t.Errorf("%d calls: %v", len(got), got)
	}
	if n := testing.AllocsPerRun(100, tick); n > 16 {
		t.Errorf("%v allocations a read; go-nvml makes one for each call's result", n)
	}
}

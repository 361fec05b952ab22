// SPDX-License-Identifier: Apache-2.0

//go:build gpu && linux && cgo

package nvml

import (
	"os"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// TestRealGPU reads this machine's GPUs twice and prints all that they give.
// GPUPILOT_NVML_LIBRARY says where the library is, if not where the loader
// looks. Run it alone: a process can use one NVML library only.
func TestRealGPU(t *testing.T) {
	r := New(Config{Library: os.Getenv("GPUPILOT_NVML_LIBRARY")})
	defer func() { _ = r.Close() }()
	devices, err := r.Devices()
	if err != nil || len(devices) == 0 {
		t.Fatalf("Devices = %d, %v", len(devices), err)
	}
	var others []gpu.FieldID
	for _, e := range equivalents {
		for id := e.first; id <= e.last; id++ {
			others = append(others, id)
		}
	}
	r.Pass(others)
	var v gpu.Values
	for _, d := range devices {
		if err := r.Read(d.UUID, gpu.AllFields(), &v); err != nil {
			t.Errorf("%s: %v", d.UUID, err)
		}
	}
	<-time.After(time.Second) // GPM and rates need two readings
	for _, d := range devices {
		began := time.Now()
		if err := r.Read(d.UUID, gpu.AllFields(), &v); err != nil {
			t.Errorf("%s: %v", d.UUID, err)
			continue
		}
		t.Logf("%+v %+v, all fields in %v", d, d.MIG, time.Since(began))
		for i, f := range gpu.Fields() {
			s, isLabel := v.GetLabel(f.ID)
			x, isNumber := v.GetAt(gpu.Index(i))
			switch {
			case isLabel:
				t.Logf("%-50s %q", f.Name, s)
			case isNumber:
				t.Logf("%-50s %v %s", f.Name, x, f.Unit)
			default:
				t.Logf("%-50s absent", f.Name)
			}
		}
		for id, n := range v.AllPassed() {
			t.Logf("%-50s %v", names.NameOf(id), n.Float)
		}
		total, _ := v.Get(gpu.FBTotal)
		if used, ok := v.Get(gpu.FBUsed); !ok || used < 0 || used > total {
			t.Errorf("memory: %v of %v MiB", used, total)
		}
		if watts, ok := v.Get(gpu.PowerUsage); ok && (watts < 1 || watts > 3000) {
			t.Errorf("power: %v W", watts)
		}
		want := defaultFields()
		began = time.Now()
		const n = 20
		for range n {
			if err := r.Read(d.UUID, want, &v); err != nil {
				t.Errorf("%s: %v", d.UUID, err)
			}
		}
		t.Logf("dcgm-exporter's default fields in %v", time.Since(began)/n)
	}
}

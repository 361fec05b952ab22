// SPDX-License-Identifier: Apache-2.0

package names

import (
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

func TestEveryNameIsOneField(t *testing.T) {
	owner := map[string]gpu.FieldID{}
	claim := func(name string, id gpu.FieldID) {
		t.Helper()
		if name == "" {
			return
		}
		if _, known := gpu.Lookup(id); !known {
			t.Errorf("%s names field %d, which the table lacks", name, id)
		}
		if other, taken := owner[name]; taken && other != id {
			t.Errorf("%s is both %v and %v", name, other, id)
		}
		owner[name] = id
	}
	for i := range gpu.NumFields {
		f := gpu.At(gpu.Index(i))
		claim(f.Name, f.ID)
	}
	rows := map[gpu.FieldID]bool{}
	for _, n := range namings {
		if rows[n.field] {
			t.Errorf("two rows for %v", n.field)
		}
		rows[n.field] = true
		claim(n.name49, n.field)
		claim(n.name1, n.field)
		if (n.scale49 != 0) != (n.help49 != "") {
			t.Errorf("%s: a changed unit needs a help text of its own, and only that", n.name49)
		}
	}
	for _, a := range append(friendly[:], former[:]...) {
		claim(a.name, a.field)
	}
	for _, a := range amd {
		claim(a.name, a.field)
	}
	for name, id := range owner {
		if r, ok := Resolve(name); !ok || r.Field != id || r.Scale <= 0 {
			t.Errorf("Resolve(%q) = %+v, %v; want field %v", name, r, ok, id)
		}
	}
}

func TestResolve(t *testing.T) {
	f := func(name string, want gpu.FieldID, scale float64) {
		t.Helper()
		got, ok := Resolve(name)
		if !ok || got.Field != want || got.Scale != scale {
			t.Errorf("Resolve(%q) = %+v, %v; want %v times %v", name, got, ok, want, scale)
		}
	}
	f("DCGM_FI_DEV_GPU_UTIL", gpu.GPUUtil, 1)
	f("gpu_gfx_activity", gpu.GPUUtil, 1)
	f("gpu_energy_consumed", gpu.TotalEnergy, 1e-3)
	f("DCGM_FI_DEV_GPU_UTIL_RATIO", gpu.GPUUtil, 100)
	f("dcgm_gpu_utilization", gpu.GPUUtil, 1)
	f("Utilization", gpu.GPUUtil, 1)
	f("203", gpu.GPUUtil, 1)
	f("DCGM_FI_DEV_SM_CLOCK_HERTZ", gpu.SMClock, 1e-6)
	f("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", gpu.TotalEnergy, 1000)
	f("DCGM_FI_DEV_FB_USED_BYTES", gpu.FBUsed, 1.0/1048576)
	f("MemoryUsed", gpu.FBUsed, 1)
	f("DCGM_FI_PROF_SM_UTIL_RATIO", gpu.SMActive, 1)

	for _, name := range []string{"", "0", "9999", "70000", "-1", "utilization", "DCGM_FI_DEV_NOPE", "DCGM_EXP_XID_ERRORS_COUNT"} {
		if r, ok := Resolve(name); ok {
			t.Errorf("Resolve(%q) = %+v; want nothing", name, r)
		}
	}
	if r, ok := Metric("Utilization"); ok {
		t.Errorf("Utilization is no metric name, yet Metric gives %+v", r)
	}
}

// What only DCGM gives can be asked for, under the names of DCGM 3 and 4.
func TestFieldsOfDCGMAlone(t *testing.T) {
	for name, id := range map[string]gpu.FieldID{
		"DCGM_FI_DEV_COUNT": 4, "DCGM_FI_DEV_NVML_INDEX": 52, "DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY": 175, "DCGM_FI_DEV_MIG_MODE": 67, "DCGM_FI_DEV_BAR1_USED": 92, "DCGM_FI_DEV_ECC_SBE_VOL_L1": 314, "DCGM_FI_DEV_ECC_DBE_AGG_TEX": 333,
		"DCGM_FI_DEV_NVLINK_BANDWIDTH_L11": 480, "DCGM_FI_DEV_NVLINK_THROUGHPUT_L17": 496, "DCGM_FI_PROF_NVDEC7_ACTIVE": 1024, "DCGM_FI_PROF_NVJPG_UTIL_7_RATIO": 1032,
	} {
		if ref, ok := Metric(name); !ok || ref != (gpu.Ref{Field: id, Scale: 1}) {
			t.Errorf("%s is %+v, %v; want field %d", name, ref, ok, id)
		}
	}
}

func TestParseProfile(t *testing.T) {
	if _, err := ParseProfile("5"); err == nil {
		t.Error("profile 5 was accepted")
	}
	for _, p := range Profiles() {
		if got, err := ParseProfile(string(p)); err != nil || got != p {
			t.Errorf("ParseProfile(%q) = %q, %v", p, got, err)
		}
	}
}

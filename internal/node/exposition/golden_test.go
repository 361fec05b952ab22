// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// TestGoldenPages compares whole pages with testdata, byte for byte: names,
// labels and their order are public. -update writes them.
func TestGoldenPages(t *testing.T) {
	at := time.UnixMilli(1_790_000_000_250)
	a := wholeGPU(0, at, map[gpu.FieldID]float64{
		gpu.SMClock: 1980, gpu.MemClock: 3201, gpu.GPUTemp: 52, gpu.PowerUsage: 627.25, gpu.TotalEnergy: 123_456_789_012,
		gpu.GPUUtil: 97, gpu.FBUsed: 81_920, gpu.XIDErrors: 94, gpu.GREngineActive: 0.9712345, gpu.PCIeTxBytes: 1.5e9,
	})
	a.Owners = []gpu.Owner{{Namespace: "team", Pod: "llm-0", Container: "server"}}
	a.XIDs = []gpu.XIDCount{{Code: 94, Count: 3, Last: at.Add(-time.Hour)}}
	mig := wholeGPU(1, at, map[gpu.FieldID]float64{gpu.FBUsed: 12, gpu.GREngineActive: 0})
	mig.UUID, mig.MIG = "MIG-5", &gpu.MIG{ParentUUID: "GPU-00000001-aaaa", GPUInstance: 7, ComputeInstance: 0, Profile: "1g.18gb"}
	lost := wholeGPU(2, at.Add(-time.Minute), map[gpu.FieldID]float64{gpu.GPUUtil: 50})
	lost.Model, lost.Err = `odd "model" \ name`, gpu.ErrLost
	s := snapshot(at, a, mig, lost)
	s.Backend, s.OwnersTime = "nvml", at
	s.Unmatched = []gpu.Allocation{{DeviceID: "GPU-gone"}}

	for _, p := range names.Profiles() {
		checkPage(t, "page-"+string(p), s, at, Config{
			Profile: p, Collectors: DefaultCollectors(p), Hostname: "gpu-node-1", Kubernetes: true, Version: "v1.2.3", Revision: "abc", InvalidLines: 1,
		})
	}
}

// TestGoldenModes are the pages of the flags that change labels, with the
// derived counters.
func TestGoldenModes(t *testing.T) {
	at := time.UnixMilli(1_790_000_000_250)
	c, bad := ParseCollectors(`DCGM_FI_DEV_GPU_UTIL, gauge, Utilisation.
DCGM_FI_DEV_XID_ERRORS, gauge, Last XID.
DCGM_FI_DRIVER_VERSION, label, Driver.
DCGM_EXP_XID_ERRORS_COUNT, gauge, XIDs of the window.
DCGM_EXP_XID_ERRORS_TOTAL, counter, XIDs.
DCGM_EXP_CLOCK_EVENTS_COUNT, gauge, Reasons of the window.
DCGM_EXP_CLOCK_EVENTS_TOTAL, counter, Reasons.
DCGM_EXP_GPU_HEALTH_STATUS, gauge, Health.
`)
	if len(bad) > 0 {
		t.Fatal(bad)
	}
	a := wholeGPU(0, at, map[gpu.FieldID]float64{gpu.GPUUtil: 97, gpu.XIDErrors: 94, gpu.ClocksEventReasons: 0x44})
	a.Owners = []gpu.Owner{{Namespace: "team", Pod: "llm-0", Container: "server"}}
	a.XIDs = []gpu.XIDCount{{Code: 94, Count: 3, Last: at.Add(-time.Minute)}}
	a.Jobs = []string{"1234", "1235"}
	b := wholeGPU(1, at, map[gpu.FieldID]float64{gpu.GPUUtil: 101, gpu.ClocksEventReasons: 0})
	b.Owners = []gpu.Owner{{Namespace: "n", Pod: "p", Container: "c", Replica: "0"}, {Namespace: "n", Pod: "q", Container: "c", Replica: "1"}}
	s := snapshot(at, a, b)
	s.OwnersTime = at
	s.Pods = map[gpu.PodName]gpu.Pod{
		{Namespace: "team", Name: "llm-0"}: {UID: "5c1d", Labels: []gpu.PodLabel{{Name: "app", Value: `"quoted"`}, {Name: "pod", Value: "taken"}}},
		{Namespace: "n", Name: "p"}:        {UID: "77aa"},
	}
	base := Config{
		Profile: names.Profile48, Collectors: c, Hostname: "gpu-node-1", Kubernetes: true, Version: "v1.2.3", Revision: "abc",
		Pods: true, PodUID: true, DashedModel: true, ClockWindow: time.Minute,
	}
	checkPage(t, "page-pods", s, at, base)
	old, virtual := base, base
	old.OldNamespace, virtual.VirtualGPUs = true, true
	checkPage(t, "page-old-namespace", s, at, old)
	checkPage(t, "page-virtual-gpus", s, at, virtual)
}

// TestGoldenParts are the pages of switches, links, CPUs and cores.
func TestGoldenParts(t *testing.T) {
	at := time.UnixMilli(1_790_000_000_250)
	c, bad := ParseCollectors(`DCGM_FI_DEV_GPU_UTIL, gauge, Utilisation.
DCGM_FI_DRIVER_VERSION, label, Driver.
DCGM_FI_DEV_CPU_VENDOR, label, Vendor.
DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT, gauge, Temperature.
DCGM_FI_DEV_NVSWITCH_LINK_CRC_ERRORS, counter, CRC errors.
DCGM_FI_DEV_CPU_UTIL_TOTAL, gauge, Busy.
DCGM_FI_DEV_CPU_TEMP_CURRENT, gauge, Temperature.
`)
	if len(bad) > 0 {
		t.Fatal(bad)
	}
	a := wholeGPU(3, at, map[gpu.FieldID]float64{gpu.GPUUtil: 97})
	s := snapshot(at, a)
	part := func(p gpu.Part, values map[gpu.FieldID]float64) {
		ps := gpu.PartSnapshot{Part: p, Collected: at}
		for id, v := range values {
			ps.Values.Set(id, v)
		}
		if p.Kind == gpu.CPU {
			ps.Values.SetLabel(gpu.CPUVendor, "NVIDIA")
		}
		s.Parts = append(s.Parts, ps)
	}
	part(gpu.Part{Kind: gpu.NVSwitch, ID: 0}, map[gpu.FieldID]float64{gpu.SwitchTemp: 41, gpu.SwitchLinkCRC: 5})
	part(gpu.Part{Kind: gpu.NVSwitch, ID: 1}, map[gpu.FieldID]float64{gpu.SwitchTemp: 900})
	part(gpu.Part{Kind: gpu.NVLink, ID: 12, Parent: 1}, map[gpu.FieldID]float64{gpu.SwitchLinkCRC: 2})
	part(gpu.Part{Kind: gpu.NVLink, ID: 0, GPU: &a.Device}, map[gpu.FieldID]float64{gpu.SwitchLinkCRC: 3})
	part(gpu.Part{Kind: gpu.CPU, ID: 0, Serial: "0x17"}, map[gpu.FieldID]float64{gpu.CPUUtil: 0.25, gpu.CPUTemp: 48.5})
	part(gpu.Part{Kind: gpu.CPUCore, ID: 71, Parent: 0}, map[gpu.FieldID]float64{gpu.CPUUtil: 1})
	for _, p := range []names.Profile{names.Profile48, names.Profile482} {
		checkPage(t, "page-parts-"+string(p), s, at, Config{Profile: p, Collectors: c, Hostname: "gpu-node-1", Version: "v1.2.3", Revision: "abc"})
	}
	// Of parts that can no longer be read, their errors stay, and since when.
	for i := range s.Parts {
		s.Parts[i].Collected = at.Add(-time.Minute)
	}
	cfg := Config{Profile: names.Profile48, Collectors: c}
	want := []string{
		`DCGM_FI_DEV_NVSWITCH_LINK_CRC_ERRORS{nvswitch="nvswitch0",DCGM_FI_DRIVER_VERSION="580.105.08"} 5`,
		`DCGM_FI_DEV_NVSWITCH_LINK_CRC_ERRORS{nvlink="12",nvswitch="nvswitch1",DCGM_FI_DRIVER_VERSION="580.105.08"} 2`,
		`DCGM_FI_DEV_NVSWITCH_LINK_CRC_ERRORS{nvlink="1",gpu="3",gpu_uuid="GPU-00000003-aaaa",pci_bus_id="00000000:1E:00.0",device="nvidia3",model_name="NVIDIA H200",DCGM_FI_DRIVER_VERSION="580.105.08"} 3`,
	}
	got := seriesOf(t, s, cfg, "DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT", "DCGM_FI_DEV_NVSWITCH_LINK_CRC_ERRORS", "DCGM_FI_DEV_CPU_UTIL_TOTAL", "DCGM_FI_DEV_CPU_TEMP_CURRENT")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a minute later (-want +got):\n%s", diff)
	}
	since := seriesOf(t, s, cfg, "gpupilot_part_last_success_timestamp_seconds")
	if want := `gpupilot_part_last_success_timestamp_seconds{nvswitch="nvswitch0",DCGM_FI_DRIVER_VERSION="580.105.08"} ` + string(appendTime(nil, at.Add(-time.Minute))); len(since) != len(s.Parts) || since[0] != want {
		t.Errorf("since when: %q, want %d and first %q", since, len(s.Parts), want)
	}
}

func checkPage(t *testing.T, name string, s *gpu.Snapshot, at time.Time, cfg Config) {
	t.Helper()
	h := history{clockWindow: cfg.clockWindow(), xidWindow: cfg.xidWindow()}
	now := at.Add(10 * time.Millisecond)
	h.update(s, now)
	r := newRenderer(&cfg, &h, &totals{})
	var pg page
	r.render(&pg, s, Stats{Duration: 2500 * time.Microsecond, Errors: 61}, now)
	for f, suffix := range []string{text: ".txt", openMetrics: ".openmetrics.txt"} {
		got := strings.ReplaceAll(string(pg.whole(format(f))), runtime.Version(), "GOVERSION")
		file := filepath.Join("testdata", name+suffix)
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

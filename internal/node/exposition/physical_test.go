// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// seriesOf are the lines of a page that begin with one of the names.
func seriesOf(t *testing.T, s *gpu.Snapshot, cfg Config, names ...string) []string {
	t.Helper()
	var pg page
	var h history
	h.update(s, s.Time)
	newRenderer(&cfg, &h, &totals{}).render(&pg, s, Stats{}, s.Time)
	var out []string
	for line := range strings.Lines(string(pg.body)) {
		for _, n := range names {
			if strings.HasPrefix(line, n+"{") {
				out = append(out, strings.TrimSpace(line))
			}
		}
	}
	return out
}

func TestPhysical(t *testing.T) {
	at := time.UnixMilli(1_790_000_000_250)
	a := wholeGPU(0, at, map[gpu.FieldID]float64{gpu.TotalEnergy: 1_500_250, gpu.PowerViolation: 2.5e9, gpu.ThermalViolation: 0})
	a.Links = gpu.Links{Errors: []gpu.LinkError{{Link: 3, Type: "recovery"}, {Link: 3, Type: "replay", Count: 7}}, Down: []int{4}}
	instance := wholeGPU(1, at, map[gpu.FieldID]float64{gpu.TotalEnergy: 1000})
	instance.UUID, instance.MIG = "MIG-1", &gpu.MIG{ParentUUID: "GPU-one", GPUInstance: 1}
	other := instance
	other.UUID, other.MIG = "MIG-2", &gpu.MIG{ParentUUID: "GPU-one", GPUInstance: 2}
	old := wholeGPU(2, at.Add(-time.Minute), map[gpu.FieldID]float64{gpu.TotalEnergy: 5})
	got := seriesOf(t, snapshot(at, a, instance, other, old), Config{Profile: names.Profile48, Further: true},
		"gpupilot_gpu_energy_joules_total", "gpupilot_gpu_throttle_seconds_total", "gpupilot_nvlink_errors_total", "gpupilot_nvlinks_down")
	want := []string{
		`gpupilot_gpu_energy_joules_total{uuid="GPU-00000000-aaaa"} 1500.250000`,
		`gpupilot_gpu_energy_joules_total{uuid="GPU-one"} 1.000000`,
		`gpupilot_gpu_throttle_seconds_total{uuid="GPU-00000000-aaaa",reason="power"} 2.500000`,
		`gpupilot_gpu_throttle_seconds_total{uuid="GPU-00000000-aaaa",reason="thermal"} 0.000000`,
		`gpupilot_nvlink_errors_total{uuid="GPU-00000000-aaaa",link="3",type="replay"} 7`,
		`gpupilot_nvlinks_down{uuid="GPU-00000000-aaaa"} 1`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
	fields := New(Config{Further: true}).Fields()
	if !fields.HasID(gpu.TotalEnergy) || !fields.HasID(gpu.LowUtilViolation) {
		t.Error("what they are made of is not collected")
	}
}

// How GPUs reach one another is dcgm-exporter's DCGM_EXP_P2P_STATUS.
func TestP2PStatus(t *testing.T) {
	at := time.UnixMilli(1_790_000_000_250)
	c, bad := ParseCollectors("DCGM_EXP_P2P_STATUS, gauge, Peers.\nDCGM_FI_DRIVER_VERSION, label, Driver.\n")
	if len(bad) > 0 {
		t.Fatal(bad)
	}
	a := wholeGPU(0, at, nil)
	a.Links.Peers = []gpu.Peer{{Index: 1, Status: gpu.P2POK}, {Index: 2, Status: 5}, {Index: 3, Status: 9}}
	a.Owners = []gpu.Owner{{Namespace: "n", Pod: "p", Container: "c"}}
	got := seriesOf(t, snapshot(at, a), Config{Profile: names.Profile48, Collectors: c, Hostname: "h", Kubernetes: true}, "DCGM_EXP_P2P_STATUS")
	head := `DCGM_EXP_P2P_STATUS{gpu="0",UUID="GPU-00000000-aaaa",pci_bus_id="00000000:1B:00.0",device="nvidia0",modelName="NVIDIA H200",hostname="h",DCGM_FI_DRIVER_VERSION="580.105.08",`
	tail := `,container="c",namespace="n",pod="p"} `
	want := []string{
		head + `link_status="OK",peer_gpu="1"` + tail + "0",
		head + `link_status="NotSupported",peer_gpu="2"` + tail + "5",
		head + `link_status="Unknown",peer_gpu="3"` + tail + "9",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

// What would spoil a page drops itself, alone, and is counted.
func TestDropped(t *testing.T) {
	at := time.UnixMilli(1_790_000_000_250)
	c, _ := ParseCollectors("DCGM_FI_DEV_GPU_UTIL, gauge, Busy.\nDCGM_FI_DEV_GPU_TEMP, gauge, Warm.\nDCGM_FI_DEV_CPU_UTIL_TOTAL, gauge, Busy.\n")
	a := wholeGPU(0, at, map[gpu.FieldID]float64{gpu.GPUUtil: 101, gpu.GPUTemp: 50})
	b := wholeGPU(1, at, map[gpu.FieldID]float64{gpu.GPUUtil: math.NaN(), gpu.GPUTemp: math.Inf(1)})
	s := snapshot(at, a, b, a)
	core := gpu.PartSnapshot{Part: gpu.Part{Kind: gpu.CPUCore, ID: 1}, Collected: at}
	core.Values.Set(gpu.CPUUtil, 0.5)
	s.Parts = []gpu.PartSnapshot{core, core}
	got := seriesOf(t, s, Config{Profile: names.Profile48, Collectors: c, Further: true}, "gpupilot_series_dropped_total", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_CPU_UTIL_TOTAL")
	want := []string{
		`DCGM_FI_DEV_CPU_UTIL_TOTAL{cpucore="1",cpu="0"} 0.500000`,
		`gpupilot_series_dropped_total{reason="out_of_range"} 1`,
		`gpupilot_series_dropped_total{reason="not_a_number"} 2`,
		`gpupilot_series_dropped_total{reason="duplicate"} 2`,
		`gpupilot_series_dropped_total{reason="claimant"} 0`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

func TestCollectorSeries(t *testing.T) {
	at := time.UnixMilli(1_790_000_000_250)
	s := snapshot(at)
	s.Collectors = []gpu.CollectorState{{Name: "gpus", Last: at.Add(-time.Second), Took: 2500 * time.Microsecond, Errors: 3}, {Name: "parts", Errors: 1}}
	got := seriesOf(t, s, Config{Further: true}, "gpupilot_collector_last_success_timestamp_seconds", "gpupilot_collector_duration_seconds", "gpupilot_collector_errors_total")
	want := []string{
		`gpupilot_collector_last_success_timestamp_seconds{collector="gpus"} 1789999999.250`,
		`gpupilot_collector_duration_seconds{collector="gpus"} 0.002500`,
		`gpupilot_collector_errors_total{collector="gpus"} 3`,
		`gpupilot_collector_errors_total{collector="parts"} 1`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

// Without --enable-exporter-metrics a page has of ours what rules, dashboards and the controller read, and
// the agent does not read what only the others need.
func TestFurther(t *testing.T) {
	at := time.UnixMilli(1_790_000_000_250)
	var devices []gpu.DeviceSnapshot
	for i := range 8 {
		values := map[gpu.FieldID]float64{gpu.TotalEnergy: 1e6}
		for _, r := range throttles {
			values[r.field] = 1e9
		}
		devices = append(devices, wholeGPU(i, at, values))
	}
	s := snapshot(at, devices...)
	s.Backend, s.Collectors = "nvml", []gpu.CollectorState{{Name: "gpus", Last: at}}
	own := func(further bool) (lines int, page string) {
		page = render(t, Config{Profile: names.Profile48, Kubernetes: true, Further: further}, s, at)
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, "gpupilot_") {
				lines++
			}
		}
		return lines, page
	}
	few, page := own(false)
	if most := 8*6 + 12; few > most {
		t.Errorf("%d series of ours of 8 GPUs, want at most %d:\n%s", few, most, page)
	}
	if all, _ := own(true); all < few+8*5 {
		t.Errorf("%d series of ours with all, %d without", all, few)
	}
	if f := New(Config{}).Fields(); f.HasID(gpu.TotalEnergy) || f.HasID(gpu.LowUtilViolation) || !f.HasID(gpu.ThermalViolation) {
		t.Error("what is not shown is read, or what is shown is not")
	}
	files, err := filepath.Glob("../../../deploy/chart/*/*.[yj]*")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d files of rules and dashboards, %v", len(files), err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range metaFamilies(&Config{Kubernetes: true, Pods: true, Processes: true, Further: true}) {
			if f.further && strings.Contains(string(b), f.name) {
				t.Errorf("%s reads %s, which is not there by default", file, f.name)
			}
		}
	}
}

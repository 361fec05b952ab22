// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// shared is a snapshot of a GPU that two pods share, one that a pod has alone,
// and one that nobody has.
func shared(at time.Time) *gpu.Snapshot {
	values := map[gpu.FieldID]float64{gpu.GPUUtil: 97, gpu.FBUsed: 3000, gpu.GPUTemp: 52}
	a, b, c := wholeGPU(0, at, values), wholeGPU(1, at, values), wholeGPU(2, at, values)
	a.Owners = []gpu.Owner{{Namespace: "n", Pod: "p", Container: "c", Replica: "0"}, {Namespace: "n", Pod: "q", Container: "c", Replica: "1"}}
	b.Owners = []gpu.Owner{{Namespace: "n", Pod: "r", Container: "c"}}
	process := func(uid string, mib, util float64) gpu.Process {
		return gpu.Process{
			Type: gpu.Compute, Memory: gpu.Read(mib * (1 << 20)), Utilization: gpu.Read(util),
			Place: gpu.Place{Kind: gpu.InPod, PodUID: uid, Container: "c"},
		}
	}
	host := gpu.Process{Type: gpu.Graphics, Memory: gpu.Read(8 << 20), Utilization: gpu.Read(0.01), Place: gpu.Place{Kind: gpu.OnHost, Name: `X "0"`}}
	a.Processes = gpu.Processes{List: []gpu.Process{process("up", 1000, .5), process("up", 500, .25), host}, Times: true}
	b.Processes = gpu.Processes{List: []gpu.Process{process("ur", 2000, .97), process("ux", 1, .02)}, Times: true}
	a.ProcessesRead, b.ProcessesRead = at, at
	c.ProcessesErr = gpu.ErrLost
	for _, d := range []*gpu.DeviceSnapshot{&a, &b} {
		gpu.AttributeProcesses(d, func(uid string) (gpu.PodName, bool) {
			return gpu.PodName{Namespace: "n", Name: uid[1:]}, uid != "ux"
		})
	}
	s := snapshot(at, a, b, c)
	s.OwnersTime = at
	return s
}

func processConfig(t *testing.T) Config {
	c, bad := ParseCollectors("DCGM_FI_DEV_GPU_UTIL, gauge, u\nDCGM_FI_DEV_FB_USED, gauge, m\nDCGM_FI_DEV_GPU_TEMP, gauge, t\nDCGM_EXP_XID_ERRORS_COUNT, gauge, x\n")
	if len(bad) > 0 {
		t.Fatal(bad)
	}
	return Config{Profile: names.Profile48, Collectors: c, Kubernetes: true, Processes: true, Version: "v1.2.3", Revision: "abc"}
}

func TestGoldenProcesses(t *testing.T) {
	at := time.UnixMilli(1_790_000_000_250)
	cfg := processConfig(t)
	checkPage(t, "page-processes", shared(at), at, cfg)
	cfg.VirtualGPUs = true
	checkPage(t, "page-processes-virtual-gpus", shared(at), at, cfg)
}

// Where a device's processes are not known, sharers have no shares, not 0 and
// not all of it.
func TestSharesThatAreNotKnown(t *testing.T) {
	at := time.UnixMilli(1_790_000_000_250)
	s := shared(at)
	for i := range s.Devices {
		s.Devices[i].Usage, s.Devices[i].ProcessesRead = nil, time.Time{}
	}
	cfg := processConfig(t)
	cfg.VirtualGPUs = true
	page := render(t, cfg, s, at)
	for _, line := range strings.Split(page, "\n") {
		if strings.Contains(line, `pod="`) && (strings.HasPrefix(line, "DCGM_FI_DEV_GPU_UTIL") || strings.HasPrefix(line, "gpupilot_pod_gpu_")) {
			t.Errorf("%s", line)
		}
	}
	if !strings.Contains(page, `DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-00000000-aaaa"`) {
		t.Error("the device's own is not there")
	}
}

// Rendering processes allocates nothing.
func TestProcessesAllocateNothing(t *testing.T) {
	at := time.UnixMilli(1_790_000_000_250)
	for _, virtual := range []bool{false, true} {
		cfg := processConfig(t)
		cfg.VirtualGPUs = virtual
		h := &history{}
		r := newRenderer(&cfg, h, &totals{})
		s := shared(at)
		h.update(s, at)
		var p page
		render := func() { r.render(&p, s, Stats{}, at) }
		render()
		if n := testing.AllocsPerRun(20, render); n != 0 {
			t.Errorf("virtual %v: %v allocations", virtual, n)
		}
	}
}

// render is a page of the text format.
func render(t *testing.T, cfg Config, s *gpu.Snapshot, at time.Time) string {
	t.Helper()
	h := &history{}
	r := newRenderer(&cfg, h, &totals{})
	h.update(s, at)
	var p page
	r.render(&p, s, Stats{}, at)
	return string(p.body)
}

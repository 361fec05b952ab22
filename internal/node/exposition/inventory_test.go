// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Each source that says how many GPUs the node has is a series with the node's name, also
// without any GPU; what a source does not say is no series.
func TestGPUsBySource(t *testing.T) {
	f := func(v *gpu.Inventory, want ...string) {
		t.Helper()
		now := time.Unix(1.8e9, 0)
		e := New(Config{Hostname: "n1"})
		e.Update(&gpu.Snapshot{Time: now, Interval: time.Second, Inventory: v}, Stats{}, now)
		_, body := get(t, e, "/metrics")
		var got []string
		for row := range strings.Lines(body) {
			if strings.HasPrefix(row, "gpupilot_gpus_by_source") {
				got = append(got, strings.TrimSpace(row))
			}
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%+v:\n%s\nwant\n%s", v, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	f(nil)
	f(gpu.TakeInventory(nil, nil, nil))
	f(gpu.TakeInventory([]gpu.Device{}, nil, nil), `gpupilot_gpus_by_source{source="library",hostname="n1"} 0`)
	f(gpu.TakeInventory([]gpu.Device{{UUID: "GPU-a"}}, []gpu.BusGPU{{Driver: "nvidia"}, {Driver: "nvidia"}, {Driver: "vfio-pci"}, {}, {}},
		[]gpu.DeviceID{{UUID: "GPU-a"}}),
		`gpupilot_gpus_by_source{source="library",hostname="n1"} 1`,
		`gpupilot_gpus_by_source{source="pci",bound="nvidia",hostname="n1"} 2`,
		`gpupilot_gpus_by_source{source="pci",bound="none",hostname="n1"} 2`,
		`gpupilot_gpus_by_source{source="pci",bound="vfio-pci",hostname="n1"} 1`,
		`gpupilot_gpus_by_source{source="device_plugin",hostname="n1"} 1`)
}

// Whether released GPUs can be read is unknown.
func TestReleasedGPUs(t *testing.T) {
	now := soon()
	for _, released := range []bool{false, true} {
		d := wholeGPU(0, now, map[gpu.FieldID]float64{gpu.GPUTemp: 50})
		d.XIDs = []gpu.XIDCount{{Code: 31, Count: 2, Last: now}}
		s := snapshot(now, d)
		want := "\ngpupilot_gpus_released 0\n"
		if released {
			s.Err, want = gpu.ErrReleased, "\ngpupilot_gpus_released 1\n"
		}
		e := New(Config{Hostname: "n1"})
		e.Update(s, Stats{}, now)
		_, body := get(t, e, "/metrics")
		for _, name := range []string{"\ngpupilot_backend_up{", "\ngpupilot_device_up{"} {
			if strings.Contains(body, name) == released {
				t.Errorf("released %v: the page has %s: %v", released, name, !released)
			}
		}
		for _, text := range []string{want, `xid="31"} 2`, "\ngpupilot_gpu_info{"} {
			if !strings.Contains(body, text) {
				t.Errorf("released %v: the page lacks %s", released, text)
			}
		}
	}
}

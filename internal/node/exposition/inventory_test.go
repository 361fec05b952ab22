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

// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Counts, numbers, limits and identities need no DCGM. An instance has those of its GPU.
func TestWhatTheAgentKnowsNeedsNoDCGM(t *testing.T) {
	f := newFake(t)
	f.Put("gpus", "gpus 2")
	f.Put("mig", "gpu 1 mig 1g.18gb 1")
	f.Put("tx", "gpu 1 pcie_tx_kb 1234")
	f.Put("rx", "gpu 1 pcie_rx_kb 567")
	r, devices := reader(t, f)
	if others := r.Pass([]gpu.FieldID{deviceName, deviceUUID, devicePCI, devicePCIID, devicePCISubsys, deviceComputeCaps}); len(others) > 0 {
		t.Errorf("NVML does not have %v", others)
	}
	whole := devices[1]
	for _, d := range devices[1:] { // the GPU and its instance
		v := read(t, r, d.UUID, gpuCount, nvmlIndex, migMaxSlices, appSMClock, appMemClock, memMaxTemp, gpuMaxTemp, pcieTx, pcieRx)
		for id, want := range map[gpu.FieldID]float64{
			gpuCount: 2, nvmlIndex: 1, migMaxSlices: 7, appSMClock: 1830, appMemClock: 3201, memMaxTemp: 95, gpuMaxTemp: 88, pcieTx: 1234, pcieRx: 567,
		} {
			expect(t, v, id, want)
		}
		for id, want := range map[gpu.FieldID]string{deviceName: whole.Model, deviceUUID: whole.UUID, devicePCI: whole.PCIBusID} {
			if text, ok := v.GetLabel(id); !ok || text != want {
				t.Errorf("field %d of %s is %q, want %q", id, d.UUID, text, want)
			}
		}
		for id, want := range map[gpu.FieldID]int64{devicePCIID: 0x233510de, devicePCISubsys: 0x18be10de, deviceComputeCaps: 9 << 16} {
			if n, ok := v.Passed(id); !ok || n != gpu.Whole(want) {
				t.Errorf("field %d of %s is %+v, want %d", id, d.UUID, n, want)
			}
		}
	}
}

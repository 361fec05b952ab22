// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// at is a GPU at a PCI address.
func at(uuid, address string) Device { return Device{UUID: uuid, PCIBusID: address, Minor: -1} }

func TestInventory(t *testing.T) {
	f := func(listed []Device, onBus []BusGPU, offered []string, counts GPUCounts, missing int, unlisted ...string) {
		t.Helper()
		var ids []DeviceID
		for _, s := range offered {
			id, ok := ParseDeviceID(s)
			if !ok {
				t.Fatalf("%q is no device id", s)
			}
			ids = append(ids, id)
		}
		got := TakeInventory(listed, onBus, ids)
		if got.GPUCounts != counts || got.Missing() != missing || !slices.Equal(got.Unlisted, unlisted) {
			t.Errorf("%v, %v, %v: %+v, missing %d, unlisted %q, want %+v, %d, %q", listed, onBus, offered, got.GPUCounts, got.Missing(), got.Unlisted, counts, missing, unlisted)
		}
	}
	a, b := at("GPU-a", "00000000:1B:00.0"), at("GPU-b", "0000:2b:00.0")
	i := Device{UUID: "MIG-1", PCIBusID: a.PCIBusID, Minor: -1, MIG: &MIG{ParentUUID: "GPU-a", GPUInstance: 7}}
	j := Device{UUID: "MIG-2", PCIBusID: a.PCIBusID, Minor: -1, MIG: &MIG{ParentUUID: "GPU-a", GPUInstance: 8}}
	bus := func(drivers ...string) (out []BusGPU) {
		out = []BusGPU{}
		for i, d := range drivers {
			out = append(out, BusGPU{PCIBusID: []string{"00000000:1B:00.0", "00000000:2B:00.0", "00000000:3B:00.0"}[i], Driver: d})
		}
		return out
	}
	none := []Device{}

	f(nil, nil, nil, GPUCounts{-1, -1, -1}, 0)
	f(nil, bus("nvidia"), []string{"GPU-a"}, GPUCounts{-1, 1, 1}, 0) // no enumeration: nothing is missing
	f(none, nil, nil, GPUCounts{0, -1, -1}, 0)
	f(none, bus("nvidia"), nil, GPUCounts{0, 1, -1}, 1, "00000000:1B:00.0")
	f([]Device{a, b}, bus("nvidia", "nvidia"), nil, GPUCounts{2, 2, -1}, 0)
	f([]Device{a}, bus("nvidia", "nvidia", "nvidia"), nil, GPUCounts{1, 3, -1}, 2, "00000000:2B:00.0", "00000000:3B:00.0")
	f([]Device{a}, bus("nvidia", "vfio-pci", ""), nil, GPUCounts{1, 1, -1}, 0) // passed through, or without a driver
	f([]Device{a}, bus("nvidia", Excluded), nil, GPUCounts{1, 1, -1}, 0)
	f([]Device{a, b}, bus(), nil, GPUCounts{2, 0, -1}, 0) // WSL, or a machine whose GPUs are on no PCI bus
	// MIG: instances are parts of a GPU, with and without the GPU itself.
	f([]Device{i, j}, bus("nvidia"), []string{"MIG-1", "MIG-2"}, GPUCounts{1, 1, 1}, 0)
	f([]Device{a, i, j}, bus("nvidia"), []string{"MIG-1", "MIG-9"}, GPUCounts{1, 1, 1}, 0)
	f([]Device{a}, bus("nvidia"), []string{"MIG-1", "MIG-GPU-b/1/0"}, GPUCounts{1, 1, -1}, 0) // destroyed instances
	// Device plugins: shares count once, whatever the name.
	f([]Device{a}, nil, []string{"GPU-a::0", "GPU-a::1", "GPU-a::2"}, GPUCounts{1, -1, 1}, 0)
	f([]Device{a}, nil, []string{"GPU-a::0", "GPU-b::0", "GPU-b::1"}, GPUCounts{1, -1, 2}, 1)
	f([]Device{a}, nil, []string{"nvidia0/vgpu0", "nvidia0/vgpu1", "nvidia1"}, GPUCounts{1, -1, 2}, 1)
	f([]Device{i, j}, nil, []string{"nvidia0/gi7", "nvidia0/gi8", "nvidia0/gi9"}, GPUCounts{1, -1, 1}, 0)
	// A GPU that was replaced: the plugin knows the old one.
	f([]Device{a}, bus("nvidia"), []string{"GPU-old"}, GPUCounts{1, 1, 1}, 0)
}

// The health of a node counts what is missing once: a GPU that is down need not be listed.
func TestMissingIsAFault(t *testing.T) {
	f := func(n NodeHealth, reasons, says string) {
		t.Helper()
		var got, text []string
		for _, x := range n.Faults(time.Time{}) {
			got, text = append(got, x.Reason), append(text, x.Message)
		}
		if strings.Join(got, " ") != reasons || !strings.Contains(strings.Join(text, "; "), says) {
			t.Errorf("%+v: %q %q, want %q %q", n, got, text, reasons, says)
		}
	}
	c := func(listed, bound, allocatable int) *GPUCounts { return &GPUCounts{listed, bound, allocatable} }
	f(NodeHealth{}, "", "")
	f(NodeHealth{Counts: c(8, 8, 8)}, "", "")
	f(NodeHealth{Counts: c(-1, 8, 8)}, "", "")
	f(NodeHealth{Counts: c(8, -1, -1)}, "", "")
	f(NodeHealth{Counts: c(7, 8, -1)}, FaultMissing, "the GPU library lists 7 GPUs, the PCI bus has 8 with NVIDIA's driver")
	f(NodeHealth{Counts: c(7, 7, 8)}, FaultMissing, "the GPU library lists 7 GPUs, the device plugin offers 8")
	f(NodeHealth{Counts: c(7, 8, 8), GPUs: []Health{{UUID: "GPU-a", Down: true}}}, FaultLost, "GPU-a cannot be read any more")
	f(NodeHealth{Counts: c(6, 8, 8), GPUs: []Health{{UUID: "GPU-a", Down: true}}}, FaultLost+" "+FaultMissing, "lists 6 GPUs")
	f(NodeHealth{Counts: c(7, 8, 8), GPUs: []Health{{UUID: "MIG-a", Down: true}}}, FaultLost+" "+FaultMissing, "lists 7 GPUs")
	f(NodeHealth{Counts: c(0, 8, 8), BackendDown: true}, FaultLost, "no GPU of the node can be read")
}

// The forms of one address are equal, and the full form stays.
func FuzzFullPCIBusID(f *testing.F) {
	for _, s := range []string{"0000:1b:00.0", "00000000:1B:00.0", "10000:01:00.0", "", ":", "x", "123456789:0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		full := FullPCIBusID(s)
		if again := FullPCIBusID(full); again != full {
			t.Errorf("%q: %q, and of that %q", s, full, again)
		}
		if domain, _, ok := strings.Cut(full, ":"); ok && len(domain) < pciDomainDigits {
			t.Errorf("%q: %q", s, full)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package vendorlib

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// slot is one device of a made sysfs, and what it is.
type slot struct {
	address, vendor, class, driver string // driver is empty without one
	virtual                        bool   // a virtual function
	information                    string // of the driver's /proc; empty: none
}

// tree writes a sysfs and a /proc with these devices. As in sysfs, the entries of the bus,
// their drivers and their physical functions are links.
func tree(t *testing.T, root string, slots []slot) *Bus {
	t.Helper()
	b := &Bus{sys: filepath.Join(root, "sys"), proc: filepath.Join(root, "proc")}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	bus := filepath.Join(b.sys, "bus/pci/devices")
	check(os.RemoveAll(root))
	check(os.MkdirAll(bus, 0o700))
	for _, s := range slots {
		dir := filepath.Join(b.sys, "devices/pci0000:00", s.address)
		check(os.MkdirAll(dir, 0o700))
		check(os.WriteFile(filepath.Join(dir, "vendor"), []byte(s.vendor+"\n"), 0o600))
		check(os.WriteFile(filepath.Join(dir, "class"), []byte(s.class+"\n"), 0o600))
		if s.driver != "" {
			check(os.Symlink("../../../bus/pci/drivers/"+s.driver, filepath.Join(dir, "driver")))
		}
		if s.virtual {
			check(os.Symlink("../0000:1b:00.0", filepath.Join(dir, "physfn")))
		}
		check(os.Symlink("../../../devices/pci0000:00/"+s.address, filepath.Join(bus, s.address)))
		if s.information != "" {
			proc := filepath.Join(b.proc, "driver/nvidia/gpus", s.address)
			check(os.MkdirAll(proc, 0o700))
			check(os.WriteFile(filepath.Join(proc, "information"), []byte(s.information), 0o600))
		}
	}
	return b
}

const used, unused = "Model: \t\t NVIDIA H200\nGPU Excluded:\t No\n", "Model: \t\t NVIDIA H200\nGPU Excluded:\t Yes\n"

func TestBus(t *testing.T) {
	b := tree(t, filepath.Join(t.TempDir(), "root"), []slot{
		{address: "0000:1b:00.0", vendor: "0x10de", class: "0x030200", driver: "nvidia", information: used},
		{address: "0000:2b:00.0", vendor: "0x10de", class: "0x030200", driver: "vfio-pci"},
		{address: "0000:3b:00.0", vendor: "0x10de", class: "0x030000"},
		{address: "0000:4b:00.0", vendor: "0x10de", class: "0x030200", driver: "nvidia", information: unused},
		{address: "10000:01:00.0", vendor: "0x10DE", class: "0x030000", driver: "nvidia"},
		{address: "0000:1b:00.4", vendor: "0x10de", class: "0x030200", driver: "nvidia", virtual: true},
		{address: "0000:1b:00.1", vendor: "0x10de", class: "0x040300", driver: "snd_hda_intel"},
		{address: "0000:05:00.0", vendor: "0x10de", class: "0x068000", driver: "nvidia-nvswitch"},
		{address: "0000:00:02.0", vendor: "0x1a03", class: "0x030000", driver: "ast"},
	})
	got, err := b.GPUs()
	want := []gpu.BusGPU{
		{PCIBusID: "00000000:1B:00.0", Driver: "nvidia"},
		{PCIBusID: "00000000:2B:00.0", Driver: "vfio-pci"},
		{PCIBusID: "00000000:3B:00.0"},
		{PCIBusID: "00000000:4B:00.0", Driver: gpu.Excluded},
		{PCIBusID: "00010000:01:00.0", Driver: "nvidia"},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("(-want +got, %v):\n%s", err, diff)
	}
	// A GPU is passed through to a guest, and one is taken out; the rest stays known.
	dir := filepath.Join(b.sys, "bus/pci/devices")
	for _, err := range []error{
		os.Remove(filepath.Join(dir, "0000:3b:00.0")), os.Remove(filepath.Join(dir, "0000:1b:00.0/driver")),
		os.Symlink("../../../bus/pci/drivers/vfio-pci", filepath.Join(dir, "0000:1b:00.0/driver")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, _ = b.GPUs()
	want = slices.Delete(want, 2, 3)
	want[0].Driver = "vfio-pci"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("later (-want +got):\n%s", diff)
	}
	if got, err := NewBus(t.TempDir()).GPUs(); got != nil || err != nil {
		t.Errorf("no PCI: %v, %v, want no answer", got, err)
	}
	if got, err := tree(t, filepath.Join(t.TempDir(), "root"), nil).GPUs(); got == nil || len(got) > 0 || err != nil {
		t.Errorf("an empty bus: %v, %v, want no GPUs", got, err)
	}
}

// Machines made by chance: the bus lists what the model says, and the inventory of a library
// that lists all GPUs of NVIDIA's driver misses none; without one of them it misses that one.
func TestBusOfMadeMachines(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 41))
		pick := func(list ...string) string { return list[rng.IntN(len(list))] }
		var slots []slot
		var want []gpu.BusGPU
		var listed []gpu.Device
		for i := range rng.IntN(12) {
			s := slot{
				address: fmt.Sprintf("%s:%02x:00.%d", pick("0000", "0009", "10000"), 0x10+i, rng.IntN(8)),
				vendor:  pick("0x10de", "0x10de", "0x10de", "0x1002", "0x8086", ""),
				class:   pick("0x030200", "0x030000", "0x030200", "0x068000", "0x040300", "0x0c0330", "0x020000"),
				driver:  pick("nvidia", "nvidia", "nvidia", "vfio-pci", "nouveau", ""),
				virtual: rng.IntN(6) == 0, information: pick("", used, unused),
			}
			slots = append(slots, s)
			if s.vendor != "0x10de" || !strings.HasPrefix(s.class, "0x03") || s.virtual {
				continue
			}
			g := gpu.BusGPU{PCIBusID: gpu.FullPCIBusID(s.address), Driver: s.driver}
			if s.driver == "nvidia" && s.information == unused {
				g.Driver = gpu.Excluded
			}
			want = append(want, g)
			if g.Driver == "nvidia" {
				listed = append(listed, made(rng, g.PCIBusID, i)...)
			}
		}
		slices.SortFunc(want, func(a, b gpu.BusGPU) int { return strings.Compare(a.PCIBusID, b.PCIBusID) })
		b := tree(t, root, slots)
		for range 2 { // the second answer is partly from memory
			got, err := b.GPUs()
			slices.SortFunc(got, func(a, b gpu.BusGPU) int { return strings.Compare(a.PCIBusID, b.PCIBusID) })
			if err != nil || !slices.Equal(got, want) {
				t.Fatalf("seed %d: %v (%v), want %v", seed, got, err, want)
			}
			if v := gpu.TakeInventory(append([]gpu.Device{}, listed...), got, nil); v.Missing() != 0 || len(v.Unlisted) > 0 {
				t.Fatalf("seed %d: %+v though all are listed", seed, v)
			}
			if len(listed) == 0 {
				continue
			}
			lost := listed[rng.IntN(len(listed))].PCIBusID
			rest := slices.DeleteFunc(append([]gpu.Device{}, listed...), func(d gpu.Device) bool { return d.PCIBusID == lost })
			if v := gpu.TakeInventory(rest, got, nil); v.Missing() != 1 || !slices.Equal(v.Unlisted, []string{lost}) {
				t.Fatalf("seed %d: %+v without %s", seed, v, lost)
			}
		}
	}
}

// made returns a listed GPU at an address: whole, or in MIG mode as its instances.
func made(rng *rand.Rand, address string, i int) (out []gpu.Device) {
	uuid := fmt.Sprint("GPU-", i)
	if rng.IntN(3) > 0 {
		return []gpu.Device{{UUID: uuid, PCIBusID: address}}
	}
	for k := range 1 + rng.IntN(7) {
		out = append(out, gpu.Device{UUID: fmt.Sprint("MIG-", i, "-", k), PCIBusID: address, MIG: &gpu.MIG{ParentUUID: uuid, GPUInstance: k}})
	}
	return out
}

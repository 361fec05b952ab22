// SPDX-License-Identifier: Apache-2.0

package vendorlib

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// The numbers of the PCI SIG: NVIDIA as a vendor, and the class of displays and GPUs.
// NvSwitches are bridges (0x0680), and a GPU's sound and USB have classes of their own.
const (
	nvidiaVendor = "0x10de"
	displayClass = "0x03"
)

// Bus is the PCI bus as the kernel describes it. It reads once of each device what it is.
// It is for one goroutine at a time.
type Bus struct {
	sys, proc string
	isGPU     map[string]bool // by address
}

// NewBus returns the bus of the machine whose sysfs is at sys.
func NewBus(sys string) *Bus { return &Bus{sys: sys, proc: "/proc"} }

// GPUs lists the GPUs of NVIDIA on the bus, sorted; nil on a machine without PCI. A virtual
// function of a GPU is none: it is a part for a guest, where it is a GPU.
func (b *Bus) GPUs() ([]gpu.BusGPU, error) {
	devices := filepath.Join(b.sys, "bus/pci/devices")
	entries, err := os.ReadDir(devices)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := []gpu.BusGPU{}
	now := make(map[string]bool, len(entries))
	for _, e := range entries {
		dir := filepath.Join(devices, e.Name())
		is, known := b.isGPU[e.Name()]
		if !known {
			is = isGPU(dir)
		}
		now[e.Name()] = is
		if is {
			out = append(out, gpu.BusGPU{PCIBusID: gpu.FullPCIBusID(e.Name()), Driver: b.driver(dir, e.Name())})
		}
	}
	b.isGPU = now
	return out, nil
}

func isGPU(dir string) bool {
	if !strings.EqualFold(read(filepath.Join(dir, "vendor")), nvidiaVendor) || !strings.HasPrefix(read(filepath.Join(dir, "class")), displayClass) {
		return false
	}
	_, err := os.Lstat(filepath.Join(dir, "physfn"))
	return err != nil
}

// driver returns the kernel's driver of a device; empty: none. NVIDIA's leaves out the GPUs
// of its parameter NVreg_ExcludedGpus.
func (b *Bus) driver(dir, address string) string {
	link, err := os.Readlink(filepath.Join(dir, "driver"))
	if err != nil {
		return ""
	}
	name := filepath.Base(link)
	if name == gpu.NVIDIADriver && excluded(read(filepath.Join(b.proc, "driver/nvidia/gpus", address, "information"))) {
		return gpu.Excluded
	}
	return name
}

// excluded reports whether the driver's description of a GPU has the line "GPU Excluded: Yes".
func excluded(information string) bool {
	for row := range strings.Lines(information) {
		name, value, _ := strings.Cut(row, ":")
		if strings.TrimSpace(name) == "GPU Excluded" {
			return strings.TrimSpace(value) == "Yes"
		}
	}
	return false
}

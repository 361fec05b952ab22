// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// BusGPU is a GPU of NVIDIA on the PCI bus.
type BusGPU struct {
	PCIBusID string // as Device.PCIBusID
	Driver   string // the kernel's driver that has it: nvidia, vfio-pci, nouveau, …; Excluded; empty: none
}

// Excluded is the BusGPU.Driver of a GPU that NVIDIA's driver has and was told not to use.
const Excluded = "excluded"

// NVIDIADriver is the BusGPU.Driver of a GPU that NVML must list.
const NVIDIADriver = "nvidia"

// GPUCounts is how many whole GPUs a node has by each source; -1: the source does not say.
type GPUCounts struct {
	Listed      int // by the GPU library
	Bound       int // on the PCI bus with NVIDIA's driver
	Allocatable int // offered to pods by a device plugin
}

// Missing returns how many GPUs the node should have and the library does not list; 0 if
// that is unknown.
func (c *GPUCounts) Missing() int {
	if c == nil || c.Listed < 0 {
		return 0
	}
	return max(c.Bound-c.Listed, c.Allocatable-c.Listed, 0)
}

// Inventory is which GPUs a node has by each source.
type Inventory struct {
	GPUCounts
	OnBus    []BusGPU // nil: unknown
	Unlisted []string // PCI addresses of those that have NVIDIA's driver, and that the library does not list
}

// TakeInventory compares what the library lists, GPUs and MIG instances, with the bus and
// with the ids that device plugins offer. Of nil, nothing is known.
func TakeInventory(listed []Device, onBus []BusGPU, offered []DeviceID) *Inventory {
	v := &Inventory{GPUCounts: GPUCounts{Listed: -1, Bound: -1, Allocatable: allocatable(offered, listed)}, OnBus: onBus}
	if listed != nil {
		uuids := map[string]bool{}
		for i := range listed {
			uuids[listed[i].whole()] = true
		}
		v.Listed = len(uuids)
	}
	if onBus == nil {
		return v
	}
	v.Bound = 0
	for _, g := range onBus {
		if g.Driver != NVIDIADriver {
			continue
		}
		v.Bound++
		if listed != nil && !slices.ContainsFunc(listed, func(d Device) bool { return FullPCIBusID(d.PCIBusID) == g.PCIBusID }) {
			v.Unlisted = append(v.Unlisted, g.PCIBusID)
		}
	}
	return v
}

// Source is the number of GPUs of one source.
type Source struct {
	Name  string // SourceLibrary, SourcePCI or SourceDevicePlugin
	Bound string // of SourcePCI: the kernel's driver, or none
	GPUs  int
}

// The names of sources. They are public: do not rename them.
const (
	SourceLibrary      = "library"
	SourcePCI          = "pci"
	SourceDevicePlugin = "device_plugin"
)

// Sources returns the numbers of the sources that say one, those of the bus by driver.
func (v *Inventory) Sources() (out []Source) {
	if v == nil {
		return nil
	}
	add := func(name, bound string, n int) {
		if n >= 0 {
			out = append(out, Source{name, bound, n})
		}
	}
	add(SourceLibrary, "", v.Listed)
	add(SourcePCI, NVIDIADriver, v.Bound)
	others := map[string]int{}
	for _, g := range v.OnBus {
		if g.Driver != NVIDIADriver {
			others[cmp.Or(g.Driver, "none")]++
		}
	}
	for _, bound := range slices.Sorted(maps.Keys(others)) {
		add(SourcePCI, bound, others[bound])
	}
	add(SourceDevicePlugin, "", v.Allocatable)
	return out
}

// whole is the UUID of the GPU that a device is, or is an instance of.
func (d *Device) whole() string {
	if d.MIG != nil {
		return d.MIG.ParentUUID
	}
	return d.UUID
}

// allocatable counts the GPUs that ids name; -1 without any. A MIG instance that is not
// listed names none: it was destroyed, and its device plugin does not know that yet.
func allocatable(ids []DeviceID, listed []Device) int {
	gpus := map[string]bool{}
	for _, id := range ids {
		at := slices.IndexFunc(listed, func(d Device) bool { return id.Matches(&d) })
		switch {
		case at >= 0:
			gpus[listed[at].whole()] = true
		case IsWhole(id.UUID):
			gpus[id.UUID] = true
		case id.UUID == "" && id.GPUInstance < 0:
			gpus["nvidia"+strconv.Itoa(id.Minor)] = true
		}
	}
	if len(gpus) == 0 {
		return -1
	}
	return len(gpus)
}

// FullPCIBusID returns a PCI address as Device.PCIBusID has it: with eight upper-case digits
// for the domain. The kernel writes 0000:1b:00.0. Other texts stay as they are, in upper case.
func FullPCIBusID(address string) string {
	domain, rest, ok := strings.Cut(strings.ToUpper(address), ":")
	if !ok || len(domain) > pciDomainDigits {
		return strings.ToUpper(address)
	}
	return strings.Repeat("0", pciDomainDigits-len(domain)) + domain + ":" + rest
}

// pciDomainDigits is the width of the domain in NVML's addresses.
const pciDomainDigits = 8

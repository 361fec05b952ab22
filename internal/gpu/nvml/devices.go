// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// listing collects the devices of one enumeration.
type listing = vendorlib.Listing[*session, *device]

// enumerate lists the GPUs and their MIG instances. A GPU that fails is left
// out, or kept if it was known; the others are listed in both cases.
func (s *session) enumerate(l *listing) error {
	count, ret := s.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("count GPUs: %w", noDriver(ret))
	}
	s.count.Store(int64(count))
	for i := range count {
		found, err := s.gpuAt(i, l)
		if err := l.Add(i, found, err); err != nil {
			return err
		}
	}
	s.events.watch(l.Found())
	return nil
}

// gpuAt finds the GPU with an index and its MIG instances.
func (s *session) gpuAt(i int, l *listing) ([]*device, error) {
	known, hung := l.KnownAt(i)
	handle, ret := s.lib.DeviceGetHandleByIndex(i)
	if ret != nvml.SUCCESS {
		return known, failure(ret)
	}
	if hung {
		return known, nil
	}
	uuid, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return known, failure(ret)
	}
	whole, ok := l.Known(uuid)
	if !ok || whole.handle != handle || whole.Index != i {
		whole = newDevice(s, s.identify(handle, i, uuid), handle, handle)
	}
	found := []*device{whole}
	instances, err := s.instances(whole, l)
	return append(found, instances...), err
}

// failure returns why a device cannot be enumerated.
func failure(ret nvml.Return) error {
	switch classify(ret) {
	case lost:
		return fmt.Errorf("%w: %s", gpu.ErrLost, reason(ret))
	case gone:
		return noDriver(ret)
	}
	return errors.New(reason(ret))
}

// identify asks for what does not change: only the UUID is mandatory.
func (s *session) identify(handle nvml.Device, index int, uuid string) gpu.Device {
	id := gpu.Device{Index: index, Minor: -1, UUID: uuid}
	if s.has("nvmlDeviceGetMinorNumber") {
		if n, ret := handle.GetMinorNumber(); ret == nvml.SUCCESS {
			id.Minor = n
		}
	}
	if s.has("nvmlDeviceGetName") {
		if name, ret := handle.GetName(); ret == nvml.SUCCESS {
			id.Model = name
		}
	}
	if s.hasAny("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo") {
		if pci, ret := handle.GetPciInfo(); ret == nvml.SUCCESS {
			id.PCIBusID = busID(&pci)
		}
	}
	return id
}

// busID is the PCI address in DCGM's form, 00000000:1B:00.0. GPUs are function
// 0; NVML gives domain, bus and device as numbers.
func busID(pci *nvml.PciInfo) string {
	return fmt.Sprintf("%08X:%02X:%02X.0", pci.Domain, pci.Bus, pci.Device)
}

// instances lists the MIG instances of a GPU: none if MIG is off.
func (s *session) instances(whole *device, l *listing) ([]*device, error) {
	if !s.mig {
		return nil, nil
	}
	mode, _, ret := whole.root.GetMigMode()
	if ret != nvml.SUCCESS || mode != nvml.DEVICE_MIG_ENABLE {
		if c := classify(ret); c == lost || c == gone {
			return nil, failure(ret)
		}
		return nil, nil
	}
	most, ret := whole.root.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("count MIG instances: %w", failure(ret))
	}
	var found []*device
	var errs []error
	for k := range most {
		handle, ret := whole.root.GetMigDeviceHandleByIndex(k)
		if classify(ret) == invalid { // no instance at this index
			continue
		}
		d, err := s.instance(whole, handle, ret, l)
		if err != nil {
			errs = append(errs, fmt.Errorf("MIG instance %d: %w", k, err))
			continue
		}
		found = append(found, d)
	}
	return found, errors.Join(errs...)
}

// instance returns the device of one MIG handle. NVML reuses handles for other
// instances, so the UUID is asked for each time.
func (s *session) instance(whole *device, handle nvml.Device, ret nvml.Return, l *listing) (*device, error) {
	if ret != nvml.SUCCESS {
		return nil, failure(ret)
	}
	uuid, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return nil, failure(ret)
	}
	if d, ok := l.Known(uuid); ok && d.handle == handle && d.whole == whole {
		return d, nil
	}
	gi, ret := handle.GetGpuInstanceId()
	if ret != nvml.SUCCESS {
		return nil, failure(ret)
	}
	ci, ret := handle.GetComputeInstanceId()
	if ret != nvml.SUCCESS {
		ci = -1
	}
	id := whole.Device
	id.UUID = uuid
	id.MIG = &gpu.MIG{ParentUUID: whole.UUID, GPUInstance: gi, ComputeInstance: ci}
	s.describe(id.MIG, handle, whole.root)
	d := newDevice(s, id, handle, whole.root)
	d.whole = whole
	return d, nil
}

// describe finds the instance's profile, from its name if the name has it, else
// from its size, and whether its compute instance spans the GPU instance.
func (s *session) describe(m *gpu.MIG, handle, root nvml.Device) {
	if s.has("nvmlDeviceGetName") {
		if name, ret := handle.GetName(); ret == nvml.SUCCESS {
			if _, profile, ok := strings.Cut(name, " MIG "); ok {
				m.Profile = strings.TrimSpace(profile)
			}
		}
	}
	if !s.hasAny("nvmlDeviceGetAttributes_v2", "nvmlDeviceGetAttributes") {
		return
	}
	a, ret := handle.GetAttributes()
	if ret != nvml.SUCCESS {
		return
	}
	if a.ComputeInstanceSliceCount == a.GpuInstanceSliceCount {
		m.ComputeInstance = -1
	}
	if m.Profile == "" && s.has("nvmlDeviceGetMemoryInfo") {
		if memory, ret := root.GetMemoryInfo(); ret == nvml.SUCCESS {
			m.Profile = profile(a, memory.Total)
		}
	}
}

// profile names an instance as NVIDIA does: its slices, and its memory in GB. The
// memory is rounded to an eighth of the GPU's memory, which is rounded up to GB.
func profile(a nvml.DeviceAttributes, totalBytes uint64) string {
	if totalBytes == 0 || a.GpuInstanceSliceCount == 0 {
		return ""
	}
	eighths := math.Round(float64(a.MemorySizeMB<<20) / float64(totalBytes) * 8)
	totalGB := math.Ceil(float64(totalBytes) / (1 << 30))
	name := fmt.Sprintf("%dg.%.0fgb", a.GpuInstanceSliceCount, math.Round(eighths/8*totalGB))
	if a.ComputeInstanceSliceCount != a.GpuInstanceSliceCount {
		name = fmt.Sprintf("%dc.%s", a.ComputeInstanceSliceCount, name)
	}
	return name
}

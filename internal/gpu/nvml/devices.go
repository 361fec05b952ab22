// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// enumerate lists the devices and makes them readable. A GPU that fails is
// left out, or, if it was known, kept; the others are listed either way.
func (r *Reader) enumerate(s *session) ([]gpu.Device, error) {
	count, ret := s.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		s.broken.Store(true)
		return nil, fmt.Errorf("%w: count GPUs: %s", gpu.ErrNoDriver, reason(ret))
	}
	before := r.library.Known()
	after := make(map[string]*device, len(before))
	list := make([]gpu.Device, 0, count)
	var errs []error
	for i := range count {
		found, err := s.gpuAt(i, before)
		if errors.Is(err, gpu.ErrNoDriver) {
			s.broken.Store(true)
			return nil, err
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("GPU %d: %w", i, err))
		}
		for _, d := range found {
			list = append(list, d.Device)
			after[d.UUID] = d
		}
	}
	r.library.SetKnown(after)
	for uuid, d := range before {
		if after[uuid] != d {
			d.release()
		}
	}
	s.events.watch(after)
	return list, errors.Join(errs...)
}

// gpuAt finds the GPU of an index and its MIG instances.
func (s *session) gpuAt(i int, before map[string]*device) ([]*device, error) {
	handle, ret := s.lib.DeviceGetHandleByIndex(i)
	if ret != nvml.SUCCESS {
		return s.knownAt(i, before), failure(ret)
	}
	if known := s.knownAt(i, before); slices.ContainsFunc(known, func(d *device) bool { return d.hung(time.Now()) }) {
		return known, nil // its calls would hang the enumeration too
	}
	uuid, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return s.knownAt(i, before), failure(ret)
	}
	whole := before[uuid]
	if whole == nil || whole.ses != s || whole.handle != handle || whole.Index != i {
		whole = newDevice(s, s.identify(handle, i, uuid), handle, handle)
	}
	found := []*device{whole}
	instances, err := s.instances(whole, before)
	return append(found, instances...), err
}

// knownAt are the devices that were at index i in this session: the GPU, then
// its instances by id.
func (s *session) knownAt(i int, before map[string]*device) []*device {
	var known []*device
	for _, d := range before {
		if d.Index == i && d.ses == s {
			known = append(known, d)
		}
	}
	rank := func(d *device) int {
		if d.MIG == nil {
			return -1
		}
		return d.MIG.GPUInstance
	}
	slices.SortFunc(known, func(a, b *device) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.UUID, b.UUID))
	})
	return known
}

// failure is why a device cannot be enumerated.
func failure(ret nvml.Return) error {
	switch classify(ret) {
	case lost:
		return fmt.Errorf("%w: %s", gpu.ErrLost, reason(ret))
	case gone:
		return fmt.Errorf("%w: %s", gpu.ErrNoDriver, reason(ret))
	}
	return errors.New(reason(ret))
}

// identify asks for what does not change. Only the UUID must be known.
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

// instances lists the MIG instances of a GPU: none where MIG is off.
func (s *session) instances(whole *device, before map[string]*device) ([]*device, error) {
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
		d, err := s.instance(whole, handle, ret, before)
		if err != nil {
			errs = append(errs, fmt.Errorf("MIG instance %d: %w", k, err))
			continue
		}
		found = append(found, d)
	}
	return found, errors.Join(errs...)
}

// instance makes the device of one MIG handle. Handles are used again for
// other instances, so its UUID is asked for each time.
func (s *session) instance(whole *device, handle nvml.Device, ret nvml.Return, before map[string]*device) (*device, error) {
	if ret != nvml.SUCCESS {
		return nil, failure(ret)
	}
	uuid, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return nil, failure(ret)
	}
	if d := before[uuid]; d != nil && d.ses == s && d.handle == handle {
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

// describe finds the instance's profile, from its name if that tells it, else
// from its size, and whether its compute instance spans it.
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

// profile names an instance as NVIDIA does: slices, and memory as the eighths
// of the GPU's that it comes nearest to, in GB of the GPU's size rounded up.
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

// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"
	"strings"
)

// DefaultNVML is the file name of NVML.
const DefaultNVML = "libnvidia-ml.so.1"

// Sensors reads a GPU's clock, power and temperature from NVML.
type Sensors struct {
	nvmlCalls
	device  uintptr
	Version string // of the kernel's driver; empty: not known
}

// nvmlCalls are the functions of NVML; all but the first ones may be nil.
type nvmlCalls struct {
	init           func() int32
	shutdown       func() int32
	count          func(n *uint32) int32
	byIndex        func(index uint32, device *uintptr) int32
	pciInfo        func(device uintptr, info *pciInfo) int32
	driverVersion  func(text *byte, size uint32) int32
	power          func(device uintptr, milliwatts *uint32) int32
	temperature    func(device uintptr, sensor int32, celsius *uint32) int32
	maxClock       func(device uintptr, kind int32, megahertz *uint32) int32
	reasons        func(device uintptr, bits *uint64) int32
	linkGeneration func(device uintptr, generation *uint32) int32
	linkWidth      func(device uintptr, width *uint32) int32
}

// pciInfo is nvmlPciInfo_t.
type pciInfo struct {
	legacy [16]byte
	_      [5]uint32 // domain, bus, device, IDs of the device and the subsystem
	busID  [32]byte
}

// clockMemory is of nvmlClockType_t.
const clockMemory = 2

// OpenSensors loads NVML and finds the GPU at a PCI address.
func OpenSensors(path, pci string) (*Sensors, error) {
	handle, err := load(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s := &Sensors{}
	missing := handle.bind(map[string]any{
		"nvmlInit_v2": &s.init, "nvmlShutdown": &s.shutdown, "nvmlDeviceGetCount_v2": &s.count,
		"nvmlDeviceGetHandleByIndex_v2": &s.byIndex, "nvmlDeviceGetPciInfo_v3|nvmlDeviceGetPciInfo_v2": &s.pciInfo,
	})
	if len(missing) > 0 {
		return nil, fmt.Errorf("%s: %w: it lacks %s", path, ErrOldLibrary, strings.Join(missing, ", "))
	}
	handle.bind(map[string]any{
		"nvmlSystemGetDriverVersion": &s.driverVersion, "nvmlDeviceGetPowerUsage": &s.power,
		"nvmlDeviceGetTemperature": &s.temperature, "nvmlDeviceGetMaxClockInfo": &s.maxClock,
		"nvmlDeviceGetCurrentClocksEventReasons|nvmlDeviceGetCurrentClocksThrottleReasons": &s.reasons,
		"nvmlDeviceGetCurrPcieLinkGeneration":                                              &s.linkGeneration,
		"nvmlDeviceGetCurrPcieLinkWidth":                                                   &s.linkWidth,
	})
	if r := s.init(); r != 0 {
		return nil, fmt.Errorf("%s: nvmlInit: error %d", path, r)
	}
	if err := s.find(pci); err != nil {
		s.shutdown()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var version [96]byte
	if s.driverVersion != nil && s.driverVersion(&version[0], uint32(len(version))) == 0 {
		s.Version = text(version[:])
	}
	return s, nil
}

func (s *Sensors) find(pci string) error {
	var n uint32
	if r := s.count(&n); r != 0 {
		return fmt.Errorf("nvmlDeviceGetCount: error %d", r)
	}
	for i := range n {
		var device uintptr
		var info pciInfo
		if s.byIndex(i, &device) != 0 || s.pciInfo(device, &info) != 0 {
			continue // a lost GPU hides no other
		}
		if strings.EqualFold(longPCI(text(info.busID[:])), pci) || strings.EqualFold(longPCI(text(info.legacy[:])), pci) {
			s.device = device
			return nil
		}
	}
	return fmt.Errorf("it has no GPU at %s", pci)
}

// Close ends the use of NVML.
func (s *Sensors) Close() { s.shutdown() }

// Reading is what the sensors say. A nil pointer is a value that could not be read.
type Reading struct {
	Watts, Celsius *float64
	Throttle       []string
}

// reasonNames are the bits of nvmlClocksEventReasons that hold the clock down. Idle and settings of applications do not.
var reasonNames = []struct {
	bit  uint64
	name string
}{
	{0x4, "power cap"},
	{0x8, "hardware slowdown"},
	{0x10, "sync boost"},
	{0x20, "software thermal"},
	{0x40, "hardware thermal"},
	{0x80, "power brake"},
}

// Read reads the sensors.
func (s *Sensors) Read() Reading {
	var r Reading
	var v uint32
	if s.power != nil && s.power(s.device, &v) == 0 {
		watts := float64(v) / 1000
		r.Watts = &watts
	}
	if s.temperature != nil && s.temperature(s.device, 0, &v) == 0 {
		celsius := float64(v)
		r.Celsius = &celsius
	}
	var bits uint64
	if s.reasons != nil && s.reasons(s.device, &bits) == 0 {
		for _, reason := range reasonNames {
			if bits&reason.bit != 0 {
				r.Throttle = append(r.Throttle, reason.name)
			}
		}
	}
	return r
}

// MemoryHertz is the memory's highest clock; 0: not known.
func (s *Sensors) MemoryHertz() float64 {
	var v uint32
	if s.maxClock == nil || s.maxClock(s.device, clockMemory, &v) != 0 {
		return 0
	}
	return float64(v) * 1e6
}

// PCIeLink is the generation and the width of the GPU's link now; 0: not known.
func (s *Sensors) PCIeLink() (generation, width int) {
	var g, w uint32
	if s.linkGeneration == nil || s.linkWidth == nil || s.linkGeneration(s.device, &g) != 0 || s.linkWidth(s.device, &w) != 0 {
		return 0, 0
	}
	return int(g), int(w)
}

// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"
)

// DefaultLibrary is the file name of the driver's library.
const DefaultLibrary = "libcuda.so.1"

// calls are the functions of the library. Handles are opaque numbers; a device's memory has 64-bit addresses.
type calls struct {
	init             func(flags uint32) Result
	driverVersion    func(version *int32) Result
	deviceCount      func(n *int32) Result
	deviceGet        func(device *int32, ordinal int32) Result
	deviceName       func(name *byte, size, device int32) Result
	deviceUUID       func(uuid *[16]byte, device int32) Result
	devicePCI        func(id *byte, size, device int32) Result
	deviceMemory     func(bytes *uint64, device int32) Result
	deviceAttribute  func(value *int32, attribute Attribute, device int32) Result
	canAccessPeer    func(can *int32, device, peer int32) Result
	contextRetain    func(context *uintptr, device int32) Result
	contextRelease   func(device int32) Result
	contextSet       func(context uintptr) Result
	peerEnable       func(context uintptr, flags uint32) Result
	memoryInfo       func(free, total *uint64) Result
	moduleLoad       func(module *uintptr, image *byte, n uint32, options *uint32, values *unsafe.Pointer) Result
	moduleUnload     func(module uintptr) Result
	moduleFunction   func(function *uintptr, module uintptr, name string) Result
	functionSet      func(function uintptr, attribute, value int32) Result
	launch           func(function uintptr, gx, gy, gz, bx, by, bz, shared uint32, stream uintptr, params, extra *unsafe.Pointer) Result
	alloc            func(address *uint64, bytes uint64) Result
	free             func(address uint64) Result
	hostAlloc        func(address *unsafe.Pointer, bytes uint64, flags uint32) Result
	hostFree         func(address unsafe.Pointer) Result
	memset           func(address uint64, value uint32, n uint64, stream uintptr) Result
	copyToHost       func(to unsafe.Pointer, from, bytes uint64, stream uintptr) Result
	copyToDevice     func(to uint64, from unsafe.Pointer, bytes uint64, stream uintptr) Result
	copyPeer         func(to uint64, toContext uintptr, from uint64, fromContext uintptr, bytes uint64, stream uintptr) Result
	streamCreate     func(stream *uintptr, flags uint32) Result
	streamDestroy    func(stream uintptr) Result
	eventCreate      func(event *uintptr, flags uint32) Result
	eventDestroy     func(event uintptr) Result
	eventRecord      func(event, stream uintptr) Result
	eventSynchronize func(event uintptr) Result
	eventElapsed     func(milliseconds *float32, from, to uintptr) Result
}

func (c *calls) symbols() map[string]any {
	return map[string]any{
		"cuInit": &c.init, "cuDriverGetVersion": &c.driverVersion,
		"cuDeviceGetCount": &c.deviceCount, "cuDeviceGet": &c.deviceGet, "cuDeviceGetName": &c.deviceName,
		"cuDeviceGetUuid_v2|cuDeviceGetUuid": &c.deviceUUID, "cuDeviceGetPCIBusId": &c.devicePCI, "cuDeviceTotalMem_v2": &c.deviceMemory,
		"cuDeviceGetAttribute": &c.deviceAttribute, "cuDeviceCanAccessPeer": &c.canAccessPeer,
		"cuDevicePrimaryCtxRetain": &c.contextRetain, "cuDevicePrimaryCtxRelease_v2|cuDevicePrimaryCtxRelease": &c.contextRelease,
		"cuCtxSetCurrent": &c.contextSet, "cuCtxEnablePeerAccess": &c.peerEnable, "cuMemGetInfo_v2": &c.memoryInfo,
		"cuModuleLoadDataEx": &c.moduleLoad, "cuModuleUnload": &c.moduleUnload, "cuModuleGetFunction": &c.moduleFunction,
		"cuFuncSetAttribute": &c.functionSet, "cuLaunchKernel": &c.launch,
		"cuMemAlloc_v2": &c.alloc, "cuMemFree_v2": &c.free, "cuMemHostAlloc": &c.hostAlloc, "cuMemFreeHost": &c.hostFree,
		"cuMemsetD32Async": &c.memset, "cuMemcpyDtoHAsync_v2": &c.copyToHost, "cuMemcpyHtoDAsync_v2": &c.copyToDevice,
		"cuMemcpyPeerAsync": &c.copyPeer, "cuStreamCreate": &c.streamCreate, "cuStreamDestroy_v2": &c.streamDestroy,
		"cuEventCreate": &c.eventCreate, "cuEventDestroy_v2": &c.eventDestroy, "cuEventRecord": &c.eventRecord,
		"cuEventSynchronize": &c.eventSynchronize, "cuEventElapsedTime": &c.eventElapsed,
	}
}

// Driver is the loaded and initialised library. It cannot be unloaded.
type Driver struct {
	calls
	// Version is the CUDA version that the driver supports: 12040 is 12.4.
	Version int
}

// Open loads and initialises the library at a path or of a file name. CUDA_VISIBLE_DEVICES is read here.
func Open(path string) (*Driver, error) {
	handle, err := load(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	d := &Driver{}
	if missing := handle.bind(d.symbols()); len(missing) > 0 {
		return nil, fmt.Errorf("%s: %w: it lacks %s", path, ErrOldLibrary, strings.Join(missing, ", "))
	}
	if err := check("cuInit", d.init(0)); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var version int32
	if d.driverVersion(&version) == Success {
		d.Version = int(version)
	}
	return d, nil
}

// check is the error of a call.
func check(call string, r Result) error {
	if r == Success {
		return nil
	}
	return fmt.Errorf("%s: %w", call, r)
}

// Device is a GPU or MIG instance that the driver shows to this process.
type Device struct {
	driver  *Driver
	handle  int32
	Ordinal int
	Name    string
	UUID    string // GPU-… or, of a MIG instance, MIG-…
	PCI     string // 00000000:18:00.0
	Bytes   uint64 // of memory
}

// Devices returns the GPUs that the driver shows to this process.
func (d *Driver) Devices() ([]*Device, error) {
	var n int32
	if err := check("cuDeviceGetCount", d.deviceCount(&n)); err != nil {
		return nil, err
	}
	var out []*Device
	for i := range n {
		device, err := d.device(i)
		if err != nil {
			return nil, fmt.Errorf("GPU %d: %w", i, err)
		}
		out = append(out, device)
	}
	return out, nil
}

func (d *Driver) device(ordinal int32) (*Device, error) {
	device := &Device{driver: d, Ordinal: int(ordinal)}
	if err := check("cuDeviceGet", d.deviceGet(&device.handle, ordinal)); err != nil {
		return nil, err
	}
	var name, pci [96]byte
	var uuid [16]byte
	if err := errors.Join(
		check("cuDeviceGetName", d.deviceName(&name[0], int32(len(name)), device.handle)),
		check("cuDeviceGetUuid", d.deviceUUID(&uuid, device.handle)),
		check("cuDeviceGetPCIBusId", d.devicePCI(&pci[0], int32(len(pci)), device.handle)),
		check("cuDeviceTotalMem", d.deviceMemory(&device.Bytes, device.handle)),
	); err != nil {
		return nil, err
	}
	device.Name, device.PCI = text(name[:]), longPCI(text(pci[:]))
	prefix := "GPU"
	if strings.Contains(device.Name, " MIG ") { // NVIDIA A100-SXM4-40GB MIG 1g.5gb
		prefix = "MIG"
	}
	device.UUID = fmt.Sprintf("%s-%x-%x-%x-%x-%x", prefix, uuid[:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:])
	return device, nil
}

// IsMIG reports whether the device is a MIG instance.
func (d *Device) IsMIG() bool { return strings.HasPrefix(d.UUID, "MIG-") }

// text is a C string.
func text(b []byte) string {
	if end := slices.Index(b, 0); end >= 0 {
		b = b[:end]
	}
	return string(b)
}

// longPCI gives the PCI domain eight digits, as NVML does; CUDA gives it four.
func longPCI(id string) string {
	domain, rest, ok := strings.Cut(id, ":")
	if !ok || len(domain) >= 8 {
		return strings.ToUpper(id)
	}
	return strings.ToUpper(strings.Repeat("0", 8-len(domain)) + domain + ":" + rest)
}

// Capability returns the device's compute capability times 10: 90 is 9.0.
func (d *Device) Capability() (int, error) {
	var major, minor int32
	err := errors.Join(
		check("cuDeviceGetAttribute", d.driver.deviceAttribute(&major, capabilityMajor, d.handle)),
		check("cuDeviceGetAttribute", d.driver.deviceAttribute(&minor, capabilityMinor, d.handle)),
	)
	return int(10*major + minor), err
}

// Attribute returns an attribute; 0 if the driver does not know it.
func (d *Device) Attribute(a Attribute) int {
	var v int32
	if d.driver.deviceAttribute(&v, a, d.handle) != Success {
		return 0
	}
	return int(v)
}

// Reaches reports whether d can read and write peer's memory.
func (d *Device) Reaches(peer *Device) bool {
	var can int32
	return d.driver.canAccessPeer(&can, d.handle, peer.handle) == Success && can != 0
}

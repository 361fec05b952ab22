// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
)

// Result is a CUresult. Success is no error.
type Result int32

// The results that callers distinguish, as in cuda.h.
const (
	Success            Result = 0
	InvalidValue       Result = 1
	OutOfMemory        Result = 2
	StubLibrary        Result = 34
	DeviceUnavailable  Result = 46
	NoDevice           Result = 100
	InvalidDevice      Result = 101
	NoBinaryForGPU     Result = 209
	ECCUncorrectable   Result = 214
	PeerNotSupported   Result = 217
	InvalidPTX         Result = 218
	NVLinkUncorrected  Result = 220
	UnsupportedPTX     Result = 222
	IllegalAddress     Result = 700
	LaunchTimeout      Result = 702
	PeerAlreadyEnabled Result = 704
	IllegalInstruction Result = 715
	LaunchFailed       Result = 719
	NotPermitted       Result = 800
	SystemNotReady     Result = 802
	DriverMismatch     Result = 803
	CompatNotSupported Result = 804
	Unknown            Result = 999
)

// meanings are the results' names in cuda.h without CUDA_ERROR_, and what they mean for a user.
var meanings = map[Result]struct{ name, text string }{
	InvalidValue:       {"INVALID_VALUE", "the driver refused an argument"},
	OutOfMemory:        {"OUT_OF_MEMORY", "the GPU has not enough free memory"},
	StubLibrary:        {"STUB_LIBRARY", "libcuda is the toolkit's stub, not the driver's library"},
	DeviceUnavailable:  {"DEVICE_UNAVAILABLE", "another process holds the GPU in exclusive mode, or its compute mode is prohibited"},
	NoDevice:           {"NO_DEVICE", "the driver shows no GPU to this process"},
	InvalidDevice:      {"INVALID_DEVICE", "there is no such GPU"},
	NoBinaryForGPU:     {"NO_BINARY_FOR_GPU", "the GPU is older than compute capability 7.0"},
	ECCUncorrectable:   {"ECC_UNCORRECTABLE", "the GPU found an uncorrectable memory error"},
	PeerNotSupported:   {"PEER_ACCESS_UNSUPPORTED", "the two GPUs cannot read each other's memory"},
	InvalidPTX:         {"INVALID_PTX", "the driver could not compile the kernel"},
	NVLinkUncorrected:  {"NVLINK_UNCORRECTABLE", "the GPU found an uncorrectable NVLink error"},
	UnsupportedPTX:     {"UNSUPPORTED_PTX_VERSION", "the driver is too old for the kernel"},
	IllegalAddress:     {"ILLEGAL_ADDRESS", "the kernel used an invalid address"},
	LaunchTimeout:      {"LAUNCH_TIMEOUT", "the driver ended the kernel after its time limit"},
	IllegalInstruction: {"ILLEGAL_INSTRUCTION", "the GPU refused an instruction of the kernel"},
	LaunchFailed:       {"LAUNCH_FAILED", "the kernel failed on the GPU"},
	NotPermitted:       {"NOT_PERMITTED", "the driver does not permit it"},
	SystemNotReady:     {"SYSTEM_NOT_READY", "the driver or its fabric manager is not ready"},
	DriverMismatch:     {"SYSTEM_DRIVER_MISMATCH", "libcuda and the kernel's driver have different versions"},
	CompatNotSupported: {"COMPAT_NOT_SUPPORTED_ON_DEVICE", "the CUDA compatibility package does not support this GPU"},
	Unknown:            {"UNKNOWN", "the driver does not say why"},
}

// Error names the result, with its number.
func (r Result) Error() string {
	if m, ok := meanings[r]; ok {
		return fmt.Sprintf("%s (CUDA_ERROR_%s, %d)", m.text, m.name, int32(r))
	}
	return fmt.Sprintf("CUDA error %d", int32(r))
}

// ResultOf returns the result in err's chain; Success if there is none.
func ResultOf(err error) Result {
	var r Result
	if errors.As(err, &r) {
		return r
	}
	return Success
}

// Fatal reports whether the process's contexts on the GPU are unusable after r. Nothing can be freed; the end of the
// process frees everything.
func (r Result) Fatal() bool {
	switch r {
	case ECCUncorrectable, NVLinkUncorrected, IllegalAddress, LaunchTimeout, IllegalInstruction, LaunchFailed:
		return true
	}
	return r >= 714 && r <= 718 // hardware stack error … invalid program counter
}

// The errors of opening a library.
var (
	// ErrNotBuilt says that this program was built without the calls.
	ErrNotBuilt = errors.New("this build of gpupilot cannot call libcuda: it was built without cgo and without its GPU worker (make builds both)")
	// ErrNoLibrary says that the library could not be loaded.
	ErrNoLibrary = errors.New("the library could not be loaded")
	// ErrOldLibrary says that the library lacks calls.
	ErrOldLibrary = errors.New("the driver is too old")
)

// Attribute is a CUdevice_attribute.
type Attribute int32

// The attributes in use; their numbers do not change.
const (
	SMs                 Attribute = 16
	MemoryClockKHz      Attribute = 36 // 0 with newer drivers
	MemoryBusBits       Attribute = 37
	L2Bytes             Attribute = 38
	MaxThreadsPerSM     Attribute = 39
	capabilityMajor     Attribute = 75
	capabilityMinor     Attribute = 76
	SharedBytesPerSM    Attribute = 81
	SharedBytesPerBlock Attribute = 97 // with opt-in
)

// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// class is the meaning of an NVML return code for a read.
type class uint8

const (
	good        class = iota
	unsupported       // not available for this device, driver or user; ask again rarely
	lost              // the GPU is off the bus or needs a reset
	gone              // the driver was unloaded or replaced
	invalid           // the handle is stale, or the argument unknown
	passing           // any other code: no value this time
)

func classify(ret nvml.Return) class {
	switch ret {
	case nvml.SUCCESS:
		return good
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NO_PERMISSION, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_DEPRECATED,
		nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_VGPU_ECC_NOT_SUPPORTED:
		return unsupported
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED:
		return lost
	case nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return gone
	case nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_FOUND, nvml.ERROR_GPU_NOT_FOUND:
		return invalid
	}
	return passing
}

// noDriver returns the gpu.ErrNoDriver of a return code.
func noDriver(ret nvml.Return) error {
	if ret == nvml.ERROR_LIB_RM_VERSION_MISMATCH {
		return fmt.Errorf("%w: %s", gpu.ErrReplaced, reason(ret))
	}
	return fmt.Errorf("%w: %s", gpu.ErrNoDriver, reason(ret))
}

// reason returns the text of a return code. It does not use NVML's own text:
// go-nvml calls nvmlErrorString without checking that it exists.
func reason(ret nvml.Return) string {
	names := map[nvml.Return]string{
		nvml.ERROR_UNINITIALIZED:           "not initialised",
		nvml.ERROR_INVALID_ARGUMENT:        "invalid argument",
		nvml.ERROR_NOT_SUPPORTED:           "not supported",
		nvml.ERROR_NO_PERMISSION:           "no permission",
		nvml.ERROR_NOT_FOUND:               "not found",
		nvml.ERROR_DRIVER_NOT_LOADED:       "driver not loaded",
		nvml.ERROR_TIMEOUT:                 "timeout",
		nvml.ERROR_IRQ_ISSUE:               "interrupt issue",
		nvml.ERROR_FUNCTION_NOT_FOUND:      "function not found",
		nvml.ERROR_GPU_IS_LOST:             "GPU is lost",
		nvml.ERROR_RESET_REQUIRED:          "reset required",
		nvml.ERROR_OPERATING_SYSTEM:        "blocked by the operating system",
		nvml.ERROR_LIB_RM_VERSION_MISMATCH: "driver and library versions differ",
		nvml.ERROR_UNKNOWN:                 "unknown error",
	}
	if s, ok := names[ret]; ok {
		return fmt.Sprintf("NVML: %s (%d)", s, int(ret))
	}
	return fmt.Sprintf("NVML error %d", int(ret))
}

// SPDX-License-Identifier: Apache-2.0

package load

import (
	"errors"
	"fmt"

	"github.com/gpupilot/gpupilot/internal/loadgen/cuda"
)

// The exit codes of a load.
const (
	ExitOff        = 1  // a source of --check is wrong, or the arguments are
	ExitUnmeasured = 2  // the load cannot be made or measured here
	ExitLost       = 3  // the GPU was lost, or hangs
	ExitECC        = 4  // uncorrectable memory error
	ExitLaunch     = 5  // a kernel failed
	ExitBusy       = 6  // another process has the GPU for itself
	ExitMemory     = 7  // not enough memory
	ExitDriver     = 8  // the driver is too old, not ready or not the one of the kernel
	ExitNoGPU      = 9  // no driver or no GPU
	ExitKernel     = 10 // the driver cannot compile a kernel for the GPU
	ExitBound      = 11 // --power-max or --temp-max was reached
)

// Failure is why a load ended early.
type Failure struct {
	Code    int    `json:"code"` // the exit code
	Message string `json:"message"`
}

func (f *Failure) Error() string { return f.Message }

// failuref is a failure with a formatted message.
func failuref(code int, format string, args ...any) *Failure {
	return &Failure{Code: code, Message: fmt.Sprintf(format, args...)}
}

// failureOf gives an error its exit code.
func failureOf(err error) *Failure {
	var f *Failure
	if errors.As(err, &f) {
		return f
	}
	f = &Failure{Code: exitCodes[cuda.ResultOf(err)], Message: err.Error()}
	switch {
	case errors.Is(err, cuda.ErrNoLibrary), errors.Is(err, cuda.ErrNotBuilt):
		f.Code = ExitNoGPU
	case errors.Is(err, cuda.ErrOldLibrary):
		f.Code = ExitDriver
	case f.Code == 0 && cuda.ResultOf(err).Fatal():
		f.Code = ExitLaunch
	case f.Code == 0:
		f.Code = ExitUnmeasured
	case f.Code == ExitLost:
		f.Message += ". The kernel's log names the cause: dmesg | grep -i xid"
	}
	return f
}

var exitCodes = map[cuda.Result]int{
	cuda.OutOfMemory:       ExitMemory,
	cuda.DeviceUnavailable: ExitBusy,
	cuda.NoDevice:          ExitNoGPU, cuda.InvalidDevice: ExitNoGPU,
	cuda.ECCUncorrectable: ExitECC,
	cuda.LaunchFailed:     ExitLaunch, cuda.LaunchTimeout: ExitLaunch, cuda.IllegalAddress: ExitLaunch, cuda.IllegalInstruction: ExitLaunch,
	cuda.NoBinaryForGPU: ExitKernel, cuda.InvalidPTX: ExitKernel,
	cuda.UnsupportedPTX: ExitDriver, cuda.DriverMismatch: ExitDriver, cuda.CompatNotSupported: ExitDriver, cuda.SystemNotReady: ExitDriver,
	cuda.StubLibrary: ExitDriver, cuda.NotPermitted: ExitDriver,
	cuda.Unknown: ExitLost, cuda.NVLinkUncorrected: ExitLost,
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

/*
#include "binding.h"
*/
import "C"

import (
	"errors"
	"fmt"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// The return codes of dcgmReturn_t that mean more than the failure of one call.
const (
	stUninitialized      = -10
	stVersionMismatch    = -12
	stNotWatched         = -16
	stGPUIsLost          = -18
	stFunctionNotFound   = -20
	stConnectionNotValid = -21
	stModuleNotLoaded    = -33
	stInstanceNotFound   = -45
	stNVMLNotLoaded      = -56
	stGPUsDetached       = -67
)

// callError is a call of DCGM that failed.
type callError struct {
	doing string
	code  int // dcgmReturn_t
	text  string
}

func (e *callError) Error() string { return fmt.Sprintf("%s: DCGM: %s (%d)", e.doing, e.text, e.code) }

// failed returns the error of a return code; nil for success.
func (e *engine) failed(doing string, code C.int) error {
	if code == 0 {
		return nil
	}
	err := &callError{doing: doing, code: int(code), text: C.GoString(C.gp_error(e.lib, code))}
	if code == stVersionMismatch {
		return fmt.Errorf("%w: %s", err, e.versions())
	}
	return err
}

// noEngine is a gpu.ErrNoDriver that is about the host engine, and so does not
// say that the driver is missing.
type noEngine struct{ error }

// Is reports whether target is gpu.ErrNoDriver.
func (noEngine) Is(target error) bool { return target == gpu.ErrNoDriver }

// Unwrap returns the error about the host engine.
func (e noEngine) Unwrap() error { return e.error }

// judge returns what a failed call means for the device and for the session.
func (s *session) judge(err error) error {
	var e *callError
	if !errors.As(err, &e) {
		return err
	}
	switch e.code {
	case stConnectionNotValid, stUninitialized:
		s.Break()
		return noEngine{fmt.Errorf("lost the host engine: %w", err)}
	case stNVMLNotLoaded, stGPUsDetached:
		s.Break()
		return fmt.Errorf("%w: %w", gpu.ErrNoDriver, err)
	case stGPUIsLost:
		return fmt.Errorf("%w: %w", gpu.ErrLost, err)
	case stInstanceNotFound:
		return fmt.Errorf("%w: %w", gpu.ErrUnknownDevice, err)
	}
	return err
}

// isWhole reports whether an error is about the whole device or session, not
// about one field.
func isWhole(err error) bool {
	return errors.Is(err, gpu.ErrNoDriver) || errors.Is(err, gpu.ErrLost) || errors.Is(err, gpu.ErrUnknownDevice)
}

// status is DcgmEntityStatus_t.
type status int

const (
	statusInaccessible status = 3
	statusLost         status = 4
	statusDisabled     status = 6
	statusDetached     status = 7
)

// gone returns why a GPU with this status cannot be read; nil if it can.
func (s status) gone() error {
	var why string
	switch s {
	case statusInaccessible:
		why = "inaccessible"
	case statusLost:
		why = "lost"
	case statusDisabled:
		why = "disabled"
	case statusDetached:
		why = "detached"
	default:
		return nil
	}
	return fmt.Errorf("%w: DCGM reports it as %s", gpu.ErrLost, why)
}

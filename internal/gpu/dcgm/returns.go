// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// The return codes of dcgmReturn_t that mean more than that one call failed.
const (
	stUninitialized      = -10
	stGPUIsLost          = -18
	stConnectionNotValid = -21
	stInstanceNotFound   = -45
	stNVMLNotLoaded      = -56
	stGPUsDetached       = -67
)

// code is the return code in an error of go-dcgm; 0: it does not tell.
func code(err error) int {
	var e *dcgm.Error
	if errors.As(err, &e) {
		return int(e.Code)
	}
	return 0
}

// judge says what a failed call means for the session. Most of go-dcgm's
// errors have lost their code: then a call whose errors have one is asked.
func (s *session) judge(err error) error {
	c := code(err)
	if c == 0 {
		_, again := dcgm.GetSupportedDevices()
		c = code(again)
	}
	switch c {
	case stConnectionNotValid, stUninitialized:
		s.broken.Store(true)
		return fmt.Errorf("%w: lost the host engine: %w", gpu.ErrNoDriver, err)
	case stNVMLNotLoaded, stGPUsDetached:
		s.broken.Store(true)
		return fmt.Errorf("%w: %w", gpu.ErrNoDriver, err)
	case stGPUIsLost:
		return fmt.Errorf("%w: %w", gpu.ErrLost, err)
	case stInstanceNotFound:
		return fmt.Errorf("%w: %w", gpu.ErrUnknownDevice, err)
	}
	return err
}

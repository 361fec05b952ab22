// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"testing"

	"github.com/gpupilot/gpupilot/internal/loadgen/load"
)

// A source that does not answer is neither right nor wrong; one that is not known is refused.
func TestLoadGPUCheck(t *testing.T) {
	flags, _ := fakeCUDA(t)
	_, err := loadGPU(t, append(flags, "-t", "fp32", "-d", "0.3", "--gpu", "0", "--check", "http://127.0.0.1:1")...)
	if exitCode(err) != load.ExitUnmeasured {
		t.Errorf("%v", err)
	}
	for _, source := range []string{"dcgm=127.0.0.1:5555", "dcgm://", "prom=http://127.0.0.1:1", "ftp://x"} {
		if _, err := loadGPU(t, append(flags, "-t", "fp32", "-d", "0.3", "--check", source)...); err == nil || exitCode(err) != 1 {
			t.Errorf("%s: %v", source, err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"os"
	"os/exec"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu/gputest"
)

func TestConformance(t *testing.T) {
	lib := library(t)
	gputest.Run(t, func(t *testing.T) gputest.Backend {
		f := newFake(t)
		return gputest.Backend{Reader: New(Config{Library: lib}), Control: f.control()}
	})
}

// TestOldLibrary runs the tests that hold for a library of 2018 too, which
// lacks GPM, MIG, field values and the second version of memory: in a process
// of its own.
func TestOldLibrary(t *testing.T) {
	if os.Getenv(variantEnv) != "" {
		t.Skip("this is that process")
	}
	library(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^(TestConformance|TestMemoryV1)$", "-test.v")
	cmd.Env = append(os.Environ(), variantEnv+"=old")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if testing.Verbose() {
		t.Logf("%s", out)
	}
}

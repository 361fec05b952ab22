// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package agent

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gpupilot/gpupilot/test/agentrig"
)

// sysroot is where Debian's cross compiler has arm64's C library.
const sysroot = "/usr/aarch64-linux-gnu"

// The agent for arm64 runs, emulated, and reads GPUs through both libraries: the
// layout of C structures and calls is the processor's.
func TestARM64(t *testing.T) {
	folder := filepath.Join(bin, "arm64")
	if _, err := os.Stat(filepath.Join(folder, "gpupilot-agent")); err != nil {
		t.Skipf("%v: make arm64", err)
	}
	emulator, err := exec.LookPath("qemu-aarch64")
	if err != nil {
		t.Skipf("%v: apt-get install qemu-user", err)
	}
	state := "gpus 2\ngpu 0 util 57\ngpu 1 power 123.5\ngpu 1 gpm_tensor 0.25\n"
	for _, l := range []*agentrig.Library{agentrig.NVML(folder, t.TempDir()), agentrig.DCGM(folder, t.TempDir())} {
		t.Run(l.Backend, func(t *testing.T) {
			if err := l.Set(state); err != nil {
				t.Fatal(err)
			}
			a := start(t, agentrig.Config{
				Runner: []string{emulator, "-L", sysroot}, Binary: filepath.Join(folder, "gpupilot-agent"),
				Args: append(l.Args(), "--no-hostname"), Env: l.Env(),
			})
			shows(t, a, `DCGM_FI_DEV_GPU_UTIL{gpu="0"`, "} 57\n", "} 123.500000\n", `DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="1"`, "} 0.250000\n")
		})
	}
}

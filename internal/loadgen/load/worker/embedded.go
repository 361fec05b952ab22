// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64) && !cgo

package worker

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/gpupilot/gpupilot/internal/loadgen/cuda"
)

// Command returns a command that calls load.Serve: the embedded worker, from memory.
func Command(...string) (*exec.Cmd, error) {
	program, err := files.ReadFile(path.Join("embedded", runtime.GOARCH, "gpuworker"))
	if err != nil {
		return nil, cuda.ErrNotBuilt
	}
	fd, err := unix.MemfdCreate("gpuworker", unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate("gpuworker", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("memory for the GPU worker: %w", err)
	}
	// The file stays open as long as this process: there are as many as GPUs.
	for len(program) > 0 {
		n, err := unix.Write(fd, program)
		if err != nil {
			return nil, fmt.Errorf("memory for the GPU worker: %w", err)
		}
		program = program[n:]
	}
	return exec.Command(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)), nil // the caller ends it by its input
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64) && cgo

package worker

import (
	"os"
	"os/exec"
)

// Command returns a command that calls load.Serve: this program, with the arguments self.
func Command(self ...string) (*exec.Cmd, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return exec.Command(path, self...), nil // the caller ends it by its input
}

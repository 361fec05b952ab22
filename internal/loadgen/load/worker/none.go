// SPDX-License-Identifier: Apache-2.0

//go:build !(linux && (amd64 || arm64))

package worker

import (
	"errors"
	"os/exec"
)

// Command returns an error: there is no libcuda on this system.
func Command(...string) (*exec.Cmd, error) {
	return nil, errors.New("load gpu runs on Linux, on amd64 and arm64")
}

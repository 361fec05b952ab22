// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// BinaryEnv is the environment variable with the path of the control plane's binary.
const BinaryEnv = "GPUPILOT_KUBE"

// ErrNoBinary means that the control plane has not been built here.
var ErrNoBinary = errors.New("no control plane binary: run test/kube/build.sh (make test and make demo do), or set " + BinaryEnv)

// FindBinary returns the path of the control plane's binary: $GPUPILOT_KUBE if set, else bin/kube of the checkout around
// the working directory. The error is ErrNoBinary if there is none.
func FindBinary() (string, error) {
	if path := os.Getenv(BinaryEnv); path != "" {
		return filepath.Abs(path)
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		path := filepath.Join(dir, "bin", "kube")
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find bin/kube: %w", ErrNoBinary)
		}
	}
}

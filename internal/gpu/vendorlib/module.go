// SPDX-License-Identifier: Apache-2.0

package vendorlib

import (
	"os"
	"path/filepath"
	"strings"
)

// sys is where the kernel describes its modules and devices, also in containers.
const sys = "/sys"

// ModuleVersion returns the version of the loaded driver of NVIDIA; empty if none is loaded.
func ModuleVersion() string { return moduleVersion(sys) }

func moduleVersion(sys string) string { return read(filepath.Join(sys, "module/nvidia/version")) }

// DriverAway reports whether the machine has GPUs of NVIDIA, and no driver of NVIDIA is loaded.
func DriverAway() bool { return driverAway(sys) }

func driverAway(sys string) bool {
	if moduleVersion(sys) != "" {
		return false
	}
	gpus, _ := NewBus(sys).GPUs() // of a bus that cannot be read, nothing is known
	return len(gpus) > 0
}

// read returns the text of a file of sysfs; empty if it cannot be read.
func read(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

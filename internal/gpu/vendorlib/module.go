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

// The numbers of the PCI SIG: NVIDIA as a vendor, and the class of displays and GPUs.
const (
	nvidiaVendor = "0x10de"
	displayClass = "0x03"
)

func driverAway(sys string) bool {
	if moduleVersion(sys) != "" {
		return false
	}
	devices, _ := filepath.Glob(filepath.Join(sys, "bus/pci/devices/*")) // the pattern is valid
	for _, d := range devices {
		if read(filepath.Join(d, "vendor")) == nvidiaVendor && strings.HasPrefix(read(filepath.Join(d, "class")), displayClass) {
			return true
		}
	}
	return false
}

// read returns the text of a file of sysfs; empty if it cannot be read.
func read(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// SPDX-License-Identifier: Apache-2.0

package vendorlib

import (
	"os"
	"strings"
)

// moduleVersion is where the kernel has the version of NVIDIA's driver, also in containers.
const moduleVersion = "/sys/module/nvidia/version"

// ModuleVersion returns the version of the loaded driver of NVIDIA; empty if none is loaded.
func ModuleVersion() string {
	b, err := os.ReadFile(moduleVersion)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

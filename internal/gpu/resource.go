// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"slices"
	"strings"
)

// nvidiaDomain is the prefix of the resources of NVIDIA's device plugin:
// nvidia.com/gpu, nvidia.com/gpu.shared, nvidia.com/mig-1g.10gb and renamed ones.
const nvidiaDomain = "nvidia.com/"

// amdResource is the resource of AMD's device plugin.
const amdResource = "amd.com/gpu"

// UnreadLabels is the label of an object in memory whose own labels were too many or too
// large to keep. Only a selector of all objects selects it.
const UnreadLabels = "gpupilot.dev/unread-labels"

// notDevices are resources of NVIDIA's domain that do not count devices. HAMi
// defines them (project-hami.io, "Device Virtualization").
var notDevices = []string{"gpumem", "gpumem-percentage", "gpucores", "priority"}

// IsResource reports whether a Kubernetes resource of this name counts GPU
// devices: whole GPUs, shared ones or MIG instances. more are further names.
func IsResource(name string, more []string) bool {
	if rest, ok := strings.CutPrefix(name, nvidiaDomain); ok {
		return !slices.Contains(notDevices, rest)
	}
	return name == amdResource || slices.Contains(more, name)
}

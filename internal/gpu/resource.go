// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"slices"
	"strings"
)

// nvidiaDomain is the prefix of the resources of NVIDIA's device plugin:
// nvidia.com/gpu, nvidia.com/gpu.shared, nvidia.com/mig-1g.10gb and renamed ones.
const nvidiaDomain = "nvidia.com/"

// amdResource is the resource of AMD's device plugin. Where it names resources after the
// partitions, they are such as amd.com/cpx_nps4.
const (
	amdResource = "amd.com/gpu"
	amdDomain   = "amd.com/"
)

// UnreadLabels is the label of an object in memory whose own labels were too many or too
// large to keep. Only a selector of all objects selects it.
const UnreadLabels = "gpupilot.dev/unread-labels"

// notDevices are resources of NVIDIA's domain that do not count GPUs: those of HAMi
// (project-hami.io, "Device Virtualization"), and the network cards of NVIDIA's Network
// Operator.
var notDevices = []string{"gpumem", "gpumem-percentage", "gpucores", "priority", "hostdev", "mlnxnics"}

// IsResource reports whether a Kubernetes resource of this name counts GPU
// devices: whole GPUs, shared ones, MIG instances or AMD's partitions. more are further
// names. It is the one rule of the agent, the controller and the command line.
func IsResource(name string, more []string) bool {
	if slices.Contains(more, name) {
		return true
	}
	if rest, ok := strings.CutPrefix(name, nvidiaDomain); ok {
		return rest != "" && !slices.Contains(notDevices, rest)
	}
	rest, ok := strings.CutPrefix(name, amdDomain)
	return name == amdResource || ok && isPartition(rest)
}

// isPartition reports whether name is that of a compute and a memory partition of AMD's
// GPUs, such as cpx_nps4.
func isPartition(name string) bool {
	compute, memory, ok := strings.Cut(name, "_")
	return ok && slices.Contains([]string{"spx", "dpx", "tpx", "qpx", "cpx"}, compute) &&
		slices.Contains([]string{"nps1", "nps2", "nps4", "nps8"}, memory)
}

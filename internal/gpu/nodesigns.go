// SPDX-License-Identifier: Apache-2.0

package gpu

// NodeLabel is true or false: whether the node has NVIDIA GPUs. GPUPilot sets it on
// nodes without another label for GPUs, and does not change a value that it has not
// set.
const NodeLabel = "gpupilot.dev/gpu"

// ProbeResult is what the agent's --probe writes, followed by the number of GPUs.
const ProbeResult = "gpus="

// NodeSign is a label of nodes with NVIDIA GPUs.
type NodeSign struct {
	Label string
	Value string // empty: any
}

// Matches reports whether a node with these labels has NVIDIA GPUs by this label.
func (s NodeSign) Matches(labels map[string]string) bool {
	value, ok := labels[s.Label]
	return ok && (s.Value == "" || value == s.Value)
}

// NodeSigns returns the labels by which GPU nodes are found.
func NodeSigns() []NodeSign {
	return []NodeSign{
		{NodeLabel, "true"},
		{"nvidia.com/gpu.present", "true"}, // GPU Operator, GPU feature discovery
		// Node feature discovery: a PCI device of NVIDIA (10de), of any class, of the class
		// 3D controller (0302) or VGA controller (0300).
		{"feature.node.kubernetes.io/pci-10de.present", "true"},
		{"feature.node.kubernetes.io/pci-0302_10de.present", "true"},
		{"feature.node.kubernetes.io/pci-0300_10de.present", "true"},
		{"cloud.google.com/gke-accelerator", ""},       // GKE; TPUs have another label
		{"k8s.amazonaws.com/accelerator", ""},          // EKS
		{"kubernetes.azure.com/accelerator", "nvidia"}, // AKS
		{"accelerator", "nvidia"},                      // AKS, older node images
		{"accelerator", "nvidia-gpu"},                  // set by hand, as guides for EKS and kubeadm say
	}
}

// SPDX-License-Identifier: Apache-2.0

package gpu

// NodeHealthCondition is the type of the Node condition with the health of the
// node's GPUs.
const NodeHealthCondition = "GPUHealthy"

// NodePoolLabels returns the labels that name a node's pool, in order of
// preference. Labels of providers and of Karpenter come before the instance
// type, which every node has.
func NodePoolLabels() []string {
	return []string{
		"karpenter.sh/nodepool",
		"cloud.google.com/gke-nodepool",
		"eks.amazonaws.com/nodegroup",
		"alpha.eksctl.io/nodegroup-name",
		"kubernetes.azure.com/agentpool",
		"agentpool", // Azure, before the prefix
		"node.kubernetes.io/instance-type",
	}
}

// ModelLabels returns the labels with the model of a node's GPUs, as set by GPU
// feature discovery and AMD's node labeller.
func ModelLabels() []string {
	return []string{"nvidia.com/gpu.product", "amd.com/gpu.product-name"}
}

// FirstLabel returns the first value of the keys that is not empty.
func FirstLabel(labels map[string]string, keys []string) string {
	for _, key := range keys {
		if value := labels[key]; value != "" {
			return value
		}
	}
	return ""
}

// SPDX-License-Identifier: Apache-2.0

package gpu

// NodeHealthCondition is the type of the Node condition that says whether the
// node's GPUs are healthy.
const NodeHealthCondition = "GPUHealthy"

// NodePoolLabels are the labels of a node that name its pool, the first that a
// node has counts. Those of providers and of Karpenter come before the instance
// type, which a node has everywhere.
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

// ModelLabels are the labels of a node that name the model of its GPUs, which
// GPU feature discovery and AMD's node labeller set.
func ModelLabels() []string {
	return []string{"nvidia.com/gpu.product", "amd.com/gpu.product-name"}
}

// FirstLabel is the value of the first of the keys that is set and not empty.
func FirstLabel(labels map[string]string, keys []string) string {
	for _, key := range keys {
		if value := labels[key]; value != "" {
			return value
		}
	}
	return ""
}

// SPDX-License-Identifier: Apache-2.0

// Package simnode is simulated GPU nodes for a real control plane. It does
// towards the API server and towards a node's agent what a kubelet with a GPU
// device plugin does: it registers Node objects and keeps them Ready, gives
// the pods bound to them devices, addresses and statuses, serves the kubelet's
// pod-resources API on a socket per node, and runs some pods, such as the
// GPUPilot agent's, as real processes. Nothing of GPUPilot knows that the
// nodes are not real.
//
// Behind the pods stands a workload model (package sim): load offered to a
// workload is spread over its pods that are Ready, and becomes the utilisation
// of their GPUs, which the agents read from a state file per node, and the
// queue that the pods tell of on their own /metrics.
//
// Pods say by annotation how they are simulated. A pod without any runs at
// once and does nothing.
package simnode

// The annotations of pods.
const (
	// StartupAnnotation is a duration: how long after its start the pod becomes
	// Ready, as one that loads its model. Default 0.
	StartupAnnotation = "sim.gpupilot.dev/startup"
	// ShutdownAnnotation is a duration: how long a deleted pod holds its GPUs
	// yet, though it serves no more. Default 500ms; the pod's grace period bounds it.
	ShutdownAnnotation = "sim.gpupilot.dev/shutdown"
	// WorkloadAnnotation is the name of the workload that the pod serves a share of.
	WorkloadAnnotation = "sim.gpupilot.dev/workload"
	// ExecAnnotation makes the pod a real process: a JSON array of the command
	// line, or a name of Config.Exec. $(POD_IP), $(POD_NAME), $(POD_NAMESPACE),
	// $(NODE_NAME), $(SIM_STATE) and $(POD_RESOURCES_SOCKET) are filled in.
	ExecAnnotation = "sim.gpupilot.dev/exec"
)

// GPUResource is the extended resource that the nodes have.
const GPUResource = "nvidia.com/gpu"

// MetricsPort is where the pods of a workload answer GET /metrics.
const MetricsPort = 8000

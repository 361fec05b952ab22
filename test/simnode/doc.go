// SPDX-License-Identifier: Apache-2.0

// Package simnode simulates GPU nodes for a real control plane. For the API server and
// the agents it behaves like a kubelet with a GPU device plugin: it registers Nodes and
// keeps them Ready, assigns devices, addresses and statuses to their pods, serves the
// kubelet's pod-resources API on a socket per node, and runs some pods, such as
// GPUPilot's agents, as real processes. GPUPilot itself runs unchanged.
//
// A workload model (package sim) drives the pods. The load of a workload is spread over
// its Ready pods. It determines the utilisation of their GPUs, which the agents read from
// a state file per node, and the queue on the pods' own /metrics.
//
// Annotations of a pod configure its simulation. A pod without annotations is Ready at
// once and does nothing.
package simnode

// The annotations of pods.
const (
	// StartupAnnotation is a duration: the time from the pod's start until it is Ready,
	// as for loading a model. Default 0.
	StartupAnnotation = "sim.gpupilot.dev/startup"
	// ShutdownAnnotation is a duration: how long a deleted pod holds its GPUs after it
	// stopped serving. Default 500ms, at most the pod's grace period.
	ShutdownAnnotation = "sim.gpupilot.dev/shutdown"
	// WorkloadAnnotation is the name of the workload that the pod belongs to.
	WorkloadAnnotation = "sim.gpupilot.dev/workload"
	// ExecAnnotation makes the pod a real process: a JSON array of the command
	// line, or a name of Config.Exec. $(POD_IP), $(POD_NAME), $(POD_NAMESPACE),
	// $(NODE_NAME), $(SIM_STATE), $(POD_RESOURCES_SOCKET) and $(TERMINATION_LOG) are
	// filled in. With the value ExecImage the process is the container's own: the program
	// of Config.Images with the container's arguments, environment and ConfigMaps.
	ExecAnnotation = "sim.gpupilot.dev/exec"
)

// ExecImage is the value of ExecAnnotation that runs the pod's first container as it is.
const ExecImage = "image"

// GPUResource is the extended resource that the nodes have.
const GPUResource = "nvidia.com/gpu"

// MetricsPort is the port of /metrics on the pods of a workload.
const MetricsPort = 8000

// SPDX-License-Identifier: Apache-2.0

// Package sim is simulated GPUs: a gpu.Reader whose utilisation comes from a
// gentle load of its own or from a state file that something else writes, and
// whose other fields (power, temperatures, clocks, energy, memory, profiling
// ratios) follow from it as they do on the real card. It is pure Go and needs
// neither a driver nor a GPU.
//
// It also holds the workload model that closes the loop in demos and tests:
// offered requests, spread over the replicas that serve, become utilisation
// and a queue (see Workload).
package sim

// SPDX-License-Identifier: Apache-2.0

// Package nodehealth keeps the condition GPUHealthy of Nodes from what the agents
// report about their GPUs.
package nodehealth

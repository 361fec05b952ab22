// SPDX-License-Identifier: Apache-2.0

// Package target knows the workloads that autoscalers address: it reads and writes their
// replicas, and finds the autoscalers that address the same workload.
package target

// SPDX-License-Identifier: Apache-2.0

// Package peers models the autoscalers that GPUPilot is compared with:
// Kubernetes' HorizontalPodAutoscaler, which KEDA uses as well, and Knative's pod
// autoscaler. A model gets the values that the real autoscaler reads, at the times
// at which the real one syncs, and returns the replicas that the real one sets.
//
// The tests compare the models with recorded results of the real autoscalers
// (testdata; make peers records them again): every step has the same replicas.
package peers

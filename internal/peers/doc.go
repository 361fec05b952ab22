// SPDX-License-Identifier: Apache-2.0

// Package peers models the autoscalers that GPUPilot is compared with:
// Kubernetes' HorizontalPodAutoscaler, with which KEDA scales as well, and
// Knative's pod autoscaler. A model is handed what the real one reads, whenever
// the real one would look, and returns what the real one would set.
//
// The tests ask the models what the real ones were asked (testdata; make peers
// asks them anew) and want the same replicas at every step.
package peers

// SPDX-License-Identifier: Apache-2.0

// Package metricsapi serves the metrics of pods as custom.metrics.k8s.io
// v1beta1 and v1beta2, for plain HorizontalPodAutoscalers: the values of the
// GPUs that a pod holds, under every name that any profile has for a field and
// in that name's unit, and the pod's own metrics where they are scraped.
//
// What a value means:
//
//   - It is the pod's: over its GPUs it is combined as the field's PodAgg says
//     (a mean of utilisations, a sum of bytes, the hottest temperature); a
//     counter is its increase a second, and windowSeconds says over how long.
//   - Its timestamp is the time of collection on the node, of the oldest value
//     that went in, never the time of the request.
//   - Missing is not zero. A pod without a fresh value is left out.
//   - So is a pod that does not serve yet, or is on its way out. The HPA's Pods
//     path then counts it as missing: as 0 when it would scale up, as the
//     target when it would scale down. That is the right credit for capacity on
//     the way; its idle or loading GPU averaged in would not be.
//   - A list in which no pod has a value is empty, upon which the HPA keeps its
//     replicas ("no metrics returned").
//
// Nothing here asks the API server per request: pods come from the lookup that
// the caller hands in. Authentication and authorization are delegated to it
// with short caches, as every aggregated API does.
package metricsapi

// SPDX-License-Identifier: Apache-2.0

// Package metricsapi serves the metrics of pods as custom.metrics.k8s.io
// v1beta1 and v1beta2, for plain HorizontalPodAutoscalers. It serves the values of
// the GPUs that a pod holds, under each profile's name of the field and in that
// name's unit. It also serves the pods' own metrics that are scraped.
//
// The rules for a value:
//
//   - A value is for the whole pod. The values of its GPUs are combined by the
//     field's PodAgg: a mean of utilisations, a sum of bytes, the maximum of
//     temperatures. A counter's value is its increase per second, over the time in
//     windowSeconds.
//   - The timestamp is the time of collection on the node, of the oldest value that
//     is included. It is never the time of the request.
//   - Missing is not zero. A pod without a fresh value is omitted.
//   - A pod that is starting or terminating is omitted too. The HPA's Pods metrics
//     count a missing pod as 0 for a scale-up, and as the target for a scale-down.
//     That accounts for its capacity. The average with its idle or loading GPU would
//     not.
//   - A list without any value is empty. The HPA then keeps its replicas ("no metrics
//     returned").
//
// A request causes no request to the API server for pods: they come from Deps.Pods.
// Authentication and authorization are delegated to the API server with short caches,
// as for every aggregated API.
package metricsapi

// SPDX-License-Identifier: Apache-2.0

// Package migrate translates what autoscalers are configured with today into
// GPUAutoscalers: HorizontalPodAutoscalers, KEDA's ScaledObjects, and the rules of
// prometheus-adapter. What has no equivalent is said for each field.
package migrate

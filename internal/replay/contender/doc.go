// SPDX-License-Identifier: Apache-2.0

// Package contender defines the autoscalers that a backtest compares: GPUPilot's engine,
// its peers (HorizontalPodAutoscaler, KEDA, Knative), and references such as an oracle.
// Peers are models of package peers, with the lag of the metrics that they read. GPUPilot
// is scale.Decide, with the observations that the controller would make.
package contender

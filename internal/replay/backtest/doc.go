// SPDX-License-Identifier: Apache-2.0

// Package backtest replays recorded load against autoscalers and compares them. A [Study]
// replays traces with several models, start-up times and seeds. A [Report] compares
// GPUPilot's policies with the Pareto front of their peers, in requests that missed a
// latency limit and in GPU-hours.
package backtest

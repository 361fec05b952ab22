// SPDX-License-Identifier: Apache-2.0

// Package service simulates an inference service under an autoscaler: a [Deployment] of
// replicas with continuous batching, the start of its pods, the routing of requests, and
// what servers and GPUs report. [Outcome] counts missed latency limits and GPU-hours.
//
// The simulation works request by request. All sequences of a replica decode at one rate,
// which changes only when a request joins or leaves. Between these events the state is
// linear in time, so the simulation jumps from event to event. It leaves out the
// granularity of single iterations, at most half an iteration per request.
// TestReplicaAgainstIterations compares it with a simulation of every iteration. Pods
// start, become ready and are deleted on whole seconds.
package service

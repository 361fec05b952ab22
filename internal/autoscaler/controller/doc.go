// SPDX-License-Identifier: Apache-2.0

// Package controller scales workloads: it determines the scrape targets, watches each
// GPUAutoscaler's target and pods, calls scale.Decide whenever new data has arrived,
// and writes the result.
//
// Each GPUAutoscaler has one goroutine that observes, decides and actuates, and
// another one that writes its status, so that a slow API server delays neither other
// objects nor the next decision. Every replica of the controller observes and
// decides; only the leader writes. A new leader therefore has its windows filled. A
// replica that has just started does not scale down before its window is covered, see
// scale.State.
package controller

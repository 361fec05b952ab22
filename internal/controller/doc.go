// SPDX-License-Identifier: Apache-2.0

// Package controller turns what is known of workloads into replicas: it finds
// what is to be scraped, watches each GPUAutoscaler's target and pods, calls
// scale.Decide whenever data for them has arrived, and writes the result.
//
// Each GPUAutoscaler has a goroutine of its own that observes, decides and
// actuates, and a second one that writes its status, so that a slow API server
// holds up neither the others nor the next decision. Every replica of the
// controller observes and decides; only the leader writes. A replica that
// comes to lead therefore knows the past already, and one that has only just
// started holds what its window does not cover, as scale.State says.
package controller

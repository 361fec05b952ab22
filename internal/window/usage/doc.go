// SPDX-License-Identifier: Apache-2.0

// Package usage says which GPUs are in use, and how much: the fields that are scraped
// because somebody reads them, the values of pods, workloads, nodes and namespaces, and
// the aggregates over the GPUs of serving pods.
package usage

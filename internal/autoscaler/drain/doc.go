// SPDX-License-Identifier: Apache-2.0

// Package drain takes pods out of the endpoints by their readiness gate before a scale-down
// removes them, keeps the gate of all others open, and knows what PodDisruptionBudgets
// allow.
package drain

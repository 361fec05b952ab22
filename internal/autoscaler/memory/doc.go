// SPDX-License-Identifier: Apache-2.0

// Package memory keeps the engine's state in the status of a GPUAutoscaler, so that a
// restarted controller decides as one that has run on.
package memory

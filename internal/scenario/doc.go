// SPDX-License-Identifier: Apache-2.0

// Package scenario runs the decision engine on stories that are text files: a
// GPUAutoscaler, a timeline of what is seen, what must hold, and what was
// decided. docs/scenarios.md describes the format; internal/scale/testdata holds
// the engine's promises in it.
package scenario

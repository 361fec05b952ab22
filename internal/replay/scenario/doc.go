// SPDX-License-Identifier: Apache-2.0

// Package scenario runs the decision engine on scenarios, which are text files with a
// GPUAutoscaler, a timeline of observations, promises that must hold, and the expected
// decisions. docs/scenarios.md describes the format; internal/scale/testdata holds the
// engine's own scenarios.
package scenario

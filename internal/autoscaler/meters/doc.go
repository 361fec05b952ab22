// SPDX-License-Identifier: Apache-2.0

// Package meters has the controller's own metrics: of its decisions and writes, and of each
// GPUAutoscaler, with the names under which the history keeps minutes of them.
package meters

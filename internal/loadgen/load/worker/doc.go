// SPDX-License-Identifier: Apache-2.0

// Package worker starts the process that loads a GPU.
//
// libcuda needs glibc and its loader, the command-line tool must run without. Without cgo the tool is static and
// contains the worker, a program of its own (cmd/gpupilot/gpuworker), which it starts from memory. With cgo the tool is
// linked with glibc already and starts itself.
package worker

// SPDX-License-Identifier: Apache-2.0

// Package cuda calls the CUDA driver library (libcuda.so.1) and, for clocks, power and temperature, NVML. It loads both
// at run time through purego, without cgo and without a CUDA toolkit.
//
// purego needs the C library's loader to start a program. Without cgo, only a program built with the tag gpuworker has
// the calls; in others Open returns ErrNotBuilt, so that they stay static.
package cuda

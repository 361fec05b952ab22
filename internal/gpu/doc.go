// SPDX-License-Identifier: Apache-2.0

// Package gpu is the domain of GPUPilot's node side: the table of GPU fields,
// the immutable Snapshot of one collection, the owners of devices, and the
// Reader port that the NVML, DCGM and simulated backends implement. It imports
// the standard library only.
//
// Missing is not zero: a value that a GPU did not give is absent from its
// Values, and every accessor reports whether the value is present.
package gpu

// SPDX-License-Identifier: Apache-2.0

// Package gpu is the domain of GPUPilot's node side: the table of fields that
// can be read from a GPU, the immutable Snapshot of one collection tick, who
// owns a device, and the Reader port that the NVML, DCGM and simulated
// backends implement. It imports the standard library only.
//
// Missing is not zero: a value that a GPU did not give is absent from its
// Values, and every accessor says whether it was there.
package gpu

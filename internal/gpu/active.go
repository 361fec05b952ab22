// SPDX-License-Identifier: Apache-2.0

package gpu

// IdleUtilization is the GPUUtil, in %, up to which a GPU is idle. NVML and DCGM report
// whole percents: an active GPU has at least 1 %.
const IdleUtilization = 0

// IsActive reports whether a GPU with this GPUUtil (%) is active.
func IsActive(utilization float64) bool { return utilization > IdleUtilization }

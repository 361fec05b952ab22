// SPDX-License-Identifier: Apache-2.0

// Package vendorlib holds what the readers over a vendor's GPU library share:
// the session between the library's start and its end, the list of devices,
// the lock of each device, and the memory of what the library refused. The
// NVML and DCGM backends put their calls into it.
package vendorlib

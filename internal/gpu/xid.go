// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"cmp"
	"slices"
)

// XID describes one code of XID errors.
type XID struct {
	Code uint64
	Text string // what failed, in our words, after NVIDIA's XID catalogue

	// Fatal is what happened to the GPU, for errors after which the catalogue asks
	// for a reset of the GPU, a restart of the node, or NVIDIA's support. It is empty
	// for other errors, such as those that an application causes (13, 31, 43, …).
	Fatal string

	// GPU is DCGM's verdict on the GPU as a whole (WatchAll), and System the verdict
	// on the system Watch. Both are zero for errors that do not affect health.
	GPU    Verdict
	Watch  HealthWatch
	System Verdict
}

// LookupXID finds an XID code. ok is false for a code that is not in the table.
func LookupXID(code uint64) (x *XID, ok bool) {
	i, ok := slices.BinarySearchFunc(xids[:], code, func(x XID, code uint64) int { return cmp.Compare(x.Code, code) })
	if !ok {
		return nil, false
	}
	return &xids[i], true
}

// FollowedXIDs returns the codes whose counters begin at 0 before the first error, so
// that a rule can compare the first error with the past: those that say something of
// the GPU's health, and those that applications cause most often. The list is sorted.
func FollowedXIDs() []uint64 { return followed }

var followed = func() (out []uint64) {
	for _, x := range xids {
		switch often := x.Code == 13 || x.Code == 31 || x.Code == 43 || x.Code == 45; {
		case often, x.Fatal != "", x.System.Health > 0, x.GPU.Health > 0:
			out = append(out, x.Code)
		}
	}
	return out
}()

// xids is sorted by code.
var xids = [...]XID{
	{Code: 0, Text: "No Error"},
	{Code: 8, Text: "GPU stopped processing"},
	{Code: 13, Text: "Graphics engine exception"},
	{Code: 31, Text: "GPU memory page fault"},
	{Code: 32, Text: "Invalid or corrupted push buffer stream"},
	{Code: 38, Text: "Driver firmware error"},
	{Code: 43, Text: "GPU stopped processing for one application"},
	{Code: 44, Text: "Graphics engine fault during context switch"},
	{Code: 45, Text: "Preemptive cleanup after earlier errors"},
	{Code: 46, Text: "GPU stopped processing", Fatal: "it stopped processing"},
	{Code: 48, Text: "Double-bit ECC error", Fatal: "an uncorrectable ECC error", GPU: Verdict{HealthFail, "DCGM_FR_XID_ERROR"}, Watch: WatchMem, System: Verdict{HealthFail, "DCGM_FR_VOLATILE_DBE_DETECTED"}},
	{Code: 56, Text: "Display engine error"},
	{Code: 57, Text: "Error programming the video memory interface"},
	{Code: 58, Text: "Unstable video memory interface"},
	{Code: 59, Text: "Internal micro-controller halted"},
	{Code: 60, Text: "Video processor exception"},
	{Code: 61, Text: "Internal micro-controller breakpoint or warning", Watch: WatchMCU, System: Verdict{HealthWarn, "DCGM_FR_XID_ERROR"}},
	{Code: 62, Text: "Internal micro-controller halted", Fatal: "its micro-controller halted", Watch: WatchMCU, System: Verdict{HealthFail, "DCGM_FR_XID_ERROR"}},
	{Code: 63, Text: "ECC page retirement or row remapping recorded", Watch: WatchMem, System: Verdict{HealthWarn, "DCGM_FR_PENDING_ROW_REMAP"}},
	{Code: 64, Text: "ECC page retirement or row remapping failed", Fatal: "a row could not be remapped", Watch: WatchMem, System: Verdict{HealthFail, "DCGM_FR_ROW_REMAP_FAILURE"}},
	{Code: 65, Text: "Video processor exception"},
	{Code: 66, Text: "Illegal access by driver"},
	{Code: 67, Text: "Illegal access by driver"},
	{Code: 68, Text: "Video processor exception"},
	{Code: 69, Text: "Graphics engine class error"},
	{Code: 70, Text: "Copy engine exception"},
	{Code: 71, Text: "Copy engine exception"},
	{Code: 72, Text: "Copy engine exception"},
	{Code: 73, Text: "Encoder exception"},
	{Code: 74, Text: "NVLink error", Fatal: "an NVLink error", GPU: Verdict{HealthFail, "DCGM_FR_XID_ERROR"}, Watch: WatchNVLink, System: Verdict{HealthFail, "DCGM_FR_NVLINK_ERROR_CRITICAL"}},
	{Code: 76, Text: "Copy engine exception"},
	{Code: 77, Text: "Copy engine exception"},
	{Code: 78, Text: "vGPU start error"},
	{Code: 79, Text: "GPU has fallen off the bus", Fatal: "it fell off the bus", GPU: Verdict{HealthFail, "DCGM_FR_FALLEN_OFF_BUS"}, Watch: WatchPCIe, System: Verdict{HealthFail, "DCGM_FR_XID_ERROR"}},
	{Code: 80, Text: "Corrupted data sent to the GPU"},
	{Code: 81, Text: "VGA subsystem error"},
	{Code: 82, Text: "Copy engine exception"},
	{Code: 83, Text: "Copy engine exception"},
	{Code: 84, Text: "Copy engine exception"},
	{Code: 85, Text: "Copy engine exception"},
	{Code: 92, Text: "High single-bit ECC error rate"},
	{Code: 94, Text: "Contained memory error", GPU: Verdict{HealthFail, "DCGM_FR_XID_ERROR"}, Watch: WatchMem, System: Verdict{HealthWarn, "DCGM_FR_XID_ERROR"}},
	{Code: 95, Text: "Uncontained memory error", Fatal: "an uncontained memory error", GPU: Verdict{HealthFail, "DCGM_FR_UNCONTAINED_ERROR"}, Watch: WatchMem, System: Verdict{HealthFail, "DCGM_FR_UNCONTAINED_ERROR"}},
	{Code: 109, Text: "Context switch timeout", Fatal: "a context switch timed out"},
	{Code: 110, Text: "Security fault", Fatal: "a security fault"},
	{Code: 119, Text: "GPU system processor RPC timeout", Fatal: "its system processor (GSP) failed", GPU: Verdict{HealthFail, "DCGM_FR_XID_ERROR"}, Watch: WatchDriver, System: Verdict{HealthFail, "DCGM_FR_XID_ERROR"}},
	{Code: 120, Text: "GPU system processor error", Fatal: "its system processor (GSP) failed", GPU: Verdict{HealthFail, "DCGM_FR_XID_ERROR"}, Watch: WatchDriver, System: Verdict{HealthFail, "DCGM_FR_XID_ERROR"}},
	{Code: 121, Text: "C2C link corrected error"},
	{Code: 122, Text: "Power management firmware error", Watch: WatchPMU, System: Verdict{HealthWarn, "DCGM_FR_XID_ERROR"}},
	{Code: 123, Text: "Power management firmware error", Fatal: "its power controller does not answer", Watch: WatchPMU, System: Verdict{HealthWarn, "DCGM_FR_XID_ERROR"}},
	{Code: 136, Text: "Link training failed", Fatal: "an NVLink could not be trained", Watch: WatchNVLink, System: Verdict{HealthFail, "DCGM_FR_XID_ERROR"}},
	{Code: 140, Text: "Unrecovered ECC error", Fatal: "an ECC error was not recovered from", GPU: Verdict{HealthFail, "DCGM_FR_XID_ERROR"}, Watch: WatchMem, System: Verdict{HealthFail, "DCGM_FR_XID_ERROR"}},
	{Code: 143, Text: "GPU initialization error", Fatal: "it could not be initialised", Watch: WatchDriver, System: Verdict{HealthFail, "DCGM_FR_XID_ERROR"}},
	{Code: 144, Text: "NVLink error", Fatal: "an NVLink error", Watch: WatchNVLink, System: Verdict{HealthFail, "DCGM_FR_NVLINK_ERROR_CRITICAL"}},
	{Code: 145, Text: "NVLink error", Fatal: "an NVLink error", Watch: WatchNVLink, System: Verdict{HealthFail, "DCGM_FR_NVLINK_ERROR_CRITICAL"}},
	{Code: 146, Text: "NVLink error", Fatal: "an NVLink error", Watch: WatchNVLink, System: Verdict{HealthFail, "DCGM_FR_NVLINK_ERROR_CRITICAL"}},
	{Code: 147, Text: "NVLink error", Fatal: "an NVLink error", Watch: WatchNVLink, System: Verdict{HealthFail, "DCGM_FR_NVLINK_ERROR_CRITICAL"}},
	{Code: 148, Text: "NVLink error", Fatal: "an NVLink error", Watch: WatchNVLink, System: Verdict{HealthFail, "DCGM_FR_NVLINK_ERROR_CRITICAL"}},
	{Code: 149, Text: "NVLink error", Fatal: "an NVLink error", Watch: WatchNVLink, System: Verdict{HealthFail, "DCGM_FR_NVLINK_ERROR_CRITICAL"}},
	{Code: 150, Text: "NVLink error", Fatal: "an NVLink error", Watch: WatchNVLink, System: Verdict{HealthFail, "DCGM_FR_NVLINK_ERROR_CRITICAL"}},
	{Code: 154, Text: "GPU recovery action changed"},
	{Code: 155, Text: "NVLink error"},
}

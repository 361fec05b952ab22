// SPDX-License-Identifier: Apache-2.0

package expo

import (
	"cmp"
	"slices"
)

// xidMessage is what an XID code means.
type xidMessage struct {
	code uint64
	text string
}

// xidText is the err_msg of an XID code.
func xidText(code uint64) string {
	i, ok := slices.BinarySearchFunc(xidMessages[:], code, func(m xidMessage, c uint64) int { return cmp.Compare(m.code, c) })
	if !ok {
		return "Unknown Error"
	}
	return xidMessages[i].text
}

// xidMessages, sorted by code, are in our words after NVIDIA's XID catalogue.
// Most say what failed, not why: the code is what to look up.
var xidMessages = [...]xidMessage{
	{0, "No Error"},
	{8, "GPU stopped processing"},
	{13, "Graphics engine exception"},
	{31, "GPU memory page fault"},
	{32, "Invalid or corrupted push buffer stream"},
	{38, "Driver firmware error"},
	{43, "GPU stopped processing for one application"},
	{44, "Graphics engine fault during context switch"},
	{45, "Preemptive cleanup after earlier errors"},
	{46, "GPU stopped processing"},
	{48, "Double-bit ECC error"},
	{56, "Display engine error"},
	{57, "Error programming the video memory interface"},
	{58, "Unstable video memory interface"},
	{59, "Internal micro-controller halted"},
	{60, "Video processor exception"},
	{61, "Internal micro-controller breakpoint or warning"},
	{62, "Internal micro-controller halted"},
	{63, "ECC page retirement or row remapping recorded"},
	{64, "ECC page retirement or row remapping failed"},
	{65, "Video processor exception"},
	{66, "Illegal access by driver"},
	{67, "Illegal access by driver"},
	{68, "Video processor exception"},
	{69, "Graphics engine class error"},
	{70, "Copy engine exception"},
	{71, "Copy engine exception"},
	{72, "Copy engine exception"},
	{73, "Encoder exception"},
	{74, "NVLink error"},
	{76, "Copy engine exception"},
	{77, "Copy engine exception"},
	{78, "vGPU start error"},
	{79, "GPU has fallen off the bus"},
	{80, "Corrupted data sent to the GPU"},
	{81, "VGA subsystem error"},
	{82, "Copy engine exception"},
	{83, "Copy engine exception"},
	{84, "Copy engine exception"},
	{85, "Copy engine exception"},
	{92, "High single-bit ECC error rate"},
	{94, "Contained memory error"},
	{95, "Uncontained memory error"},
	{109, "Context switch timeout"},
	{110, "Security fault"},
	{119, "GPU system processor RPC timeout"},
	{120, "GPU system processor error"},
	{121, "C2C link corrected error"},
	{122, "Power management firmware error"},
	{123, "Power management firmware error"},
	{136, "Link training failed"},
	{140, "Unrecovered ECC error"},
	{143, "GPU initialization error"},
	{144, "NVLink error"},
	{145, "NVLink error"},
	{146, "NVLink error"},
	{147, "NVLink error"},
	{148, "NVLink error"},
	{149, "NVLink error"},
	{150, "NVLink error"},
	{154, "GPU recovery action changed"},
	{155, "NVLink error"},
}

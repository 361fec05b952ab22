// SPDX-License-Identifier: Apache-2.0

package expo

// xidText is what an XID code means, in our words after NVIDIA's XID catalogue.
// Most say what failed, not why: the code is what to look up.
func xidText(code uint64) string {
	switch code {
	case 0:
		return "No Error"
	case 8:
		return "GPU stopped processing"
	case 13:
		return "Graphics engine exception"
	case 31:
		return "GPU memory page fault"
	case 32:
		return "Invalid or corrupted push buffer stream"
	case 38:
		return "Driver firmware error"
	case 43:
		return "GPU stopped processing for one application"
	case 44:
		return "Graphics engine fault during context switch"
	case 45:
		return "Preemptive cleanup after earlier errors"
	case 46:
		return "GPU stopped processing"
	case 48:
		return "Double-bit ECC error"
	case 56:
		return "Display engine error"
	case 57:
		return "Error programming the video memory interface"
	case 58:
		return "Unstable video memory interface"
	case 59, 62:
		return "Internal micro-controller halted"
	case 60:
		return "Video processor exception"
	case 61:
		return "Internal micro-controller breakpoint or warning"
	case 63:
		return "ECC page retirement or row remapping recorded"
	case 64:
		return "ECC page retirement or row remapping failed"
	case 65:
		return "Video processor exception"
	case 66, 67:
		return "Illegal access by driver"
	case 68:
		return "Video processor exception"
	case 69:
		return "Graphics engine class error"
	case 70, 71, 72, 76, 77, 82, 83, 84, 85:
		return "Copy engine exception"
	case 73:
		return "Encoder exception"
	case 74:
		return "NVLink error"
	case 78:
		return "vGPU start error"
	case 79:
		return "GPU has fallen off the bus"
	case 80:
		return "Corrupted data sent to the GPU"
	case 81:
		return "VGA subsystem error"
	case 92:
		return "High single-bit ECC error rate"
	case 94:
		return "Contained memory error"
	case 95:
		return "Uncontained memory error"
	case 109:
		return "Context switch timeout"
	case 110:
		return "Security fault"
	case 119:
		return "GPU system processor RPC timeout"
	case 120:
		return "GPU system processor error"
	case 121:
		return "C2C link corrected error"
	case 122, 123:
		return "Power management firmware error"
	case 136:
		return "Link training failed"
	case 140:
		return "Unrecovered ECC error"
	case 143:
		return "GPU initialization error"
	case 144, 145, 146, 147, 148, 149, 150:
		return "NVLink error"
	case 154:
		return "GPU recovery action changed"
	case 155:
		return "NVLink error"
	}
	return "Unknown Error"
}

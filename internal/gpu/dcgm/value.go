// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"math"
	"strconv"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

const (
	blankNotSupported = 2 // the blank value "not supported" counted from the first, gpu.BlankInt32 and so on
	stNotSupported    = -6
)

// The types of values, DCGM_FT_* of dcgm_fields.h.
const (
	typeInt64  = 'i'
	typeDouble = 'd'
	typeString = 's'
	typeTime   = 't' // Unix microseconds, kept as an int64
)

// reading is a decoded value.
type reading struct {
	number      gpu.Number
	ok          bool // number is a value
	unsupported bool // the device does not support the field
	wrong       bool // the value is not a number
}

// decode reads a number from the first eight bytes of a value.
func decode(fieldType byte, status int, word uint64) reading {
	switch fieldType {
	case typeInt64, typeTime:
		n := int64(word)
		// A 64-bit value can be a blank of 32 bits: DCGM or the driver keeps some
		// fields in 32 bits.
		for _, first := range [...]int64{gpu.BlankInt32, gpu.BlankInt64} {
			// DCGM_INT32_IS_BLANK and DCGM_INT64_IS_BLANK include the rest of the type.
			if n >= first && n-first < 16 {
				return reading{unsupported: n-first == blankNotSupported || status == stNotSupported}
			}
		}
		return reading{number: gpu.Whole(n), ok: status == 0}
	case typeDouble:
		x := math.Float64frombits(word)
		if math.IsNaN(x) {
			return reading{wrong: status == 0}
		}
		if x >= gpu.BlankFloat {
			return reading{unsupported: x-gpu.BlankFloat == blankNotSupported || status == stNotSupported}
		}
		return reading{number: gpu.Real(x), ok: status == 0}
	}
	return reading{}
}

// decodeText returns a string, or a whole number in decimal; empty for a missing
// value.
func decodeText(fieldType byte, status int, word uint64, text string) string {
	switch r := decode(fieldType, status, word); {
	case fieldType == typeInt64 && r.ok:
		return strconv.FormatInt(int64(word), 10)
	case fieldType != typeString || status != 0, strings.HasPrefix(text, "<<<") && strings.HasSuffix(text, ">>>"):
		return ""
	}
	return text
}

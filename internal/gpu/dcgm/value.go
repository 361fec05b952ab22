// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"math"
	"strconv"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// DCGM's blank values of each type, from dcgm_structs.h: the first one, then not
// found, not supported and not permitted. Those of int32 come in values of 64
// bits, too, for what DCGM or the driver keeps in 32 bits.
const (
	int32Blank  int64   = 0x7ffffff0
	int64Blank  int64   = 0x7ffffffffffffff0
	doubleBlank float64 = 1 << 47

	blankNotSupported = 2
	stNotSupported    = -6
)

// The types of values, DCGM_FT_* of dcgm_fields.h.
const (
	typeInt64  = 'i'
	typeDouble = 'd'
	typeString = 's'
)

// reading is what a number's value says.
type reading struct {
	number      gpu.Number
	ok          bool // there is a value
	unsupported bool // there will be none
	wrong       bool // what there is is no number
}

// decode reads a number from the first eight bytes of a value.
func decode(fieldType byte, status int, word uint64) reading {
	switch fieldType {
	case typeInt64:
		n := int64(word)
		for _, first := range [...]int64{int32Blank, int64Blank} {
			// DCGM_INT32_IS_BLANK and DCGM_INT64_IS_BLANK take in the rest of the type.
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
		if x >= doubleBlank {
			return reading{unsupported: x-doubleBlank == blankNotSupported || status == stNotSupported}
		}
		return reading{number: gpu.Real(x), ok: status == 0}
	}
	return reading{}
}

// decodeText is a string, or a whole number in decimal; empty: there is none.
func decodeText(fieldType byte, status int, word uint64, text string) string {
	switch r := decode(fieldType, status, word); {
	case fieldType == typeInt64 && r.ok:
		return strconv.FormatInt(int64(word), 10)
	case fieldType != typeString || status != 0, strings.HasPrefix(text, "<<<") && strings.HasSuffix(text, ">>>"):
		return ""
	}
	return text
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"
)

// The first of DCGM's blank values of each type, from dcgm_structs.h. The next
// are: not found, not supported, not permitted.
const (
	int64Blank  int64   = 0x7ffffffffffffff0
	doubleBlank float64 = 1 << 47

	blankNotSupported = 2
	statusNotSupport  = -6
)

// reading is what a field's value says.
type reading struct {
	number      float64
	text        string
	ok          bool // there is a value
	unsupported bool // there will be none
}

// decode reads a value's eight bytes, or its string. The value is DCGM's 4 KiB:
// it is not copied.
func decode(fieldType uint, status int, value *[4096]byte) reading {
	word := binary.NativeEndian.Uint64(value[:8])
	switch fieldType {
	case dcgm.DCGM_FT_INT64:
		n := int64(word)
		if n >= int64Blank {
			return reading{unsupported: n-int64Blank == blankNotSupported || status == statusNotSupport}
		}
		return reading{number: float64(n), text: strconv.FormatInt(n, 10), ok: status == 0}
	case dcgm.DCGM_FT_DOUBLE:
		x := math.Float64frombits(word)
		if !(x < doubleBlank) { // NaN is no value either
			return reading{unsupported: x-doubleBlank == blankNotSupported || status == statusNotSupport}
		}
		return reading{number: x, ok: status == 0}
	case dcgm.DCGM_FT_STRING:
		text, _, _ := bytes.Cut(value[:], []byte{0})
		if bytes.HasPrefix(text, []byte("<<<")) && bytes.HasSuffix(text, []byte(">>>")) {
			return reading{unsupported: string(text) == "<<<NOT_SUPPORTED>>>"}
		}
		return reading{text: string(text), ok: len(text) > 0 && status == 0}
	}
	return reading{}
}

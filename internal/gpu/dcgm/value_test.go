// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"
)

func word(w uint64) *[4096]byte {
	var b [4096]byte
	binary.NativeEndian.PutUint64(b[:], w)
	return &b
}

func text(s string) *[4096]byte {
	var b [4096]byte
	copy(b[:], s)
	return &b
}

func TestDecode(t *testing.T) {
	f := func(fieldType uint, status int, value *[4096]byte, want reading) {
		t.Helper()
		if got := decode(fieldType, status, value); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	absent, never := reading{}, reading{unsupported: true}
	i, d, s := uint(dcgm.DCGM_FT_INT64), uint(dcgm.DCGM_FT_DOUBLE), uint(dcgm.DCGM_FT_STRING)
	f(i, 0, word(0), reading{ok: true, text: "0"})
	f(i, 0, word(97), reading{number: 97, ok: true, text: "97"})
	f(i, 0, word(0x7ffffffffffffff0), absent)
	f(i, 0, word(0x7ffffffffffffff1), absent)
	f(i, 0, word(0x7ffffffffffffff2), never)
	f(i, 0, word(0x7ffffffffffffff3), absent)
	f(d, 0, word(math.Float64bits(0)), reading{ok: true})
	f(d, 0, word(math.Float64bits(412.5)), reading{number: 412.5, ok: true})
	f(d, 0, word(math.Float64bits(140737488355328)), absent)
	f(d, 0, word(math.Float64bits(140737488355330)), never)
	f(d, 0, word(math.Float64bits(140737488355331)), absent)
	f(d, 0, word(math.Float64bits(math.NaN())), absent)
	f(s, 0, text("NVIDIA H200"), reading{text: "NVIDIA H200", ok: true})
	f(s, 0, text(""), absent)
	f(s, 0, text("<<<NULL>>>"), absent)
	f(s, 0, text("<<<NOT_SUPPORTED>>>"), never)
	f('b', 0, text("blob"), absent)
}

func FuzzDecode(f *testing.F) {
	f.Add(uint8('i'), uint64(1), "")
	f.Add(uint8('d'), math.Float64bits(math.Inf(-1)), "x")
	f.Add(uint8('s'), uint64(0), "<<<x>>>")
	f.Fuzz(func(t *testing.T, fieldType uint8, w uint64, rest string) {
		b := word(w)
		copy(b[8:], rest)
		got := decode(uint(fieldType), 0, b)
		if got.ok && got.unsupported || math.IsNaN(got.number) || got.number >= 9.3e18 || got.text != "" && !got.ok {
			t.Errorf("%c %x %q: %+v", fieldType, w, rest, got)
		}
	})
}

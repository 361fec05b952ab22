// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"math"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

func TestDecode(t *testing.T) {
	f := func(fieldType byte, status int, word uint64, want reading) {
		t.Helper()
		if got := decode(fieldType, status, word); got != want {
			t.Errorf("%c %x: %+v, want %+v", fieldType, word, got, want)
		}
	}
	absent, never := reading{}, reading{unsupported: true}
	d := math.Float64bits
	f('i', 0, 0, reading{number: gpu.Whole(0), ok: true})
	f('i', 0, 97, reading{number: gpu.Whole(97), ok: true})
	f('i', 0, 1<<53+1, reading{number: gpu.Whole(1<<53 + 1), ok: true})
	f('i', 0, 2147483631, reading{number: gpu.Whole(2147483631), ok: true})
	f('i', 0, 2147483632, absent)
	f('i', 0, 2147483633, absent)
	f('i', 0, 2147483634, never)
	f('i', 0, 2147483635, absent)
	f('i', 0, 2147483647, absent)
	f('i', 0, 2147483648, reading{number: gpu.Whole(2147483648), ok: true})
	f('i', 0, 0x7fffffffffffffef, reading{number: gpu.Whole(0x7fffffffffffffef), ok: true})
	f('i', 0, 0x7fffffffffffffff, absent)
	f('i', 0, 0x7ffffffffffffff0, absent)
	f('i', 0, 0x7ffffffffffffff1, absent)
	f('i', 0, 0x7ffffffffffffff2, never)
	f('i', 0, 0x7ffffffffffffff3, absent)
	f('i', -6, 0x7ffffffffffffff0, never)
	f('d', 0, d(0), reading{number: gpu.Real(0), ok: true})
	f('d', 0, d(412.5), reading{number: gpu.Real(412.5), ok: true})
	f('d', 0, d(140737488355328), absent)
	f('d', 0, d(140737488355329), absent)
	f('d', 0, d(140737488355330), never)
	f('d', 0, d(140737488355331), absent)
	f('d', 0, d(1e300), absent)
	f('d', 0, d(math.NaN()), reading{wrong: true})
	f('d', -14, d(math.NaN()), absent)
	f('s', 0, 1, absent)
	f('b', 0, 1, absent)
}

func TestDecodeText(t *testing.T) {
	f := func(fieldType byte, status int, word uint64, text, want string) {
		t.Helper()
		if got := decodeText(fieldType, status, word, text); got != want {
			t.Errorf("%c %x %q: %q, want %q", fieldType, word, text, got, want)
		}
	}
	f('s', 0, 0, "NVIDIA H200", "NVIDIA H200")
	f('s', 0, 0, "", "")
	f('s', -14, 0, "old", "")
	f('s', 0, 0, "<<<NULL>>>", "")
	f('s', 0, 0, "<<<NOT_SUPPORTED>>>", "")
	f('i', 0, 13010, "", "13010")
	f('i', 0, 0x7ffffffffffffff0, "", "")
	f('i', 0, 2147483634, "", "")
	f('d', 0, 0, "", "")
}

func FuzzDecode(f *testing.F) {
	f.Add(byte('i'), 0, uint64(1))
	f.Add(byte('d'), -6, math.Float64bits(math.Inf(-1)))
	f.Fuzz(func(t *testing.T, fieldType byte, status int, word uint64) {
		got := decode(fieldType, status, word)
		if got.ok && (got.unsupported || status != 0) || math.IsNaN(got.number.Float) || got.number.Float >= 9.3e18 {
			t.Errorf("%c %d %x: %+v", fieldType, status, word, got)
		}
	})
}

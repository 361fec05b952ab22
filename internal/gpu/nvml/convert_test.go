// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

func TestLinkRate(t *testing.T) {
	at := time.Unix(1000, 0)
	var l linkRate
	f := func(ms int, tx, rx, want float64, ok bool) {
		t.Helper()
		if got, gotOK := l.update(at.Add(time.Duration(ms)*time.Millisecond), tx, rx); got != want || gotOK != ok {
			t.Errorf("at %d ms: %v, %v; want %v, %v", ms, got, gotOK, want, ok)
		}
	}
	f(0, 1000, 1000, 0, false)      // one reading is no rate
	f(50, 9000, 9000, 0, false)     // too near
	f(1000, 3000, 4000, 5, true)    // 5000 KiB in a second
	f(1050, 9999, 9999, 5, true)    // too near: the last stands
	f(2000, 3000, 4000, 0, true)    // nothing moved
	f(3000, 10, 10, 0, false)       // counters began anew
	f(4000, 1010, 2010, 3, true)    // 3000 KiB in a second
	f(6000, 11010, 12010, 10, true) // 20000 KiB in two
}

func TestNumber(t *testing.T) {
	f := func(kind nvml.ValueType, bytes [8]byte, want gpu.Number, ok bool) {
		t.Helper()
		got, gotOK := number(&nvml.FieldValue{ValueType: uint32(kind), Value: bytes})
		if got != want || gotOK != ok {
			t.Errorf("type %d of %v = %v, %v; want %v, %v", kind, bytes, got, gotOK, want, ok)
		}
	}
	le := binary.NativeEndian
	var b [8]byte
	le.PutUint64(b[:], math.Float64bits(1.5))
	f(nvml.VALUE_TYPE_DOUBLE, b, gpu.Real(1.5), true)
	b = [8]byte{}
	le.PutUint32(b[:], 7)
	f(nvml.VALUE_TYPE_UNSIGNED_INT, b, gpu.Whole(7), true)
	le.PutUint32(b[:], math.MaxUint32)
	f(nvml.VALUE_TYPE_SIGNED_INT, b, gpu.Whole(-1), true)
	le.PutUint64(b[:], 1<<40)
	f(nvml.VALUE_TYPE_UNSIGNED_LONG, b, gpu.Whole(1<<40), true)
	f(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, b, gpu.Whole(1<<40), true)
	le.PutUint64(b[:], math.MaxUint64)
	f(nvml.VALUE_TYPE_SIGNED_LONG_LONG, b, gpu.Whole(-1), true)
	f(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, b, gpu.Real(math.MaxUint64), true)
	le.PutUint64(b[:], 1<<53+1)
	f(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, b, gpu.Whole(1<<53+1), true)
	b = [8]byte{}
	le.PutUint16(b[:], 513)
	f(nvml.VALUE_TYPE_UNSIGNED_SHORT, b, gpu.Whole(513), true)
	f(99, b, gpu.Number{}, false)
}

func TestProfile(t *testing.T) {
	f := func(compute, slices uint32, memoryMB, totalMB uint64, want string) {
		t.Helper()
		a := nvml.DeviceAttributes{ComputeInstanceSliceCount: compute, GpuInstanceSliceCount: slices, MemorySizeMB: memoryMB}
		if got := profile(a, totalMB<<20); got != want {
			t.Errorf("%d/%d slices, %d of %d MB: %q, want %q", compute, slices, memoryMB, totalMB, got, want)
		}
	}
	f(1, 1, 4864, 40536, "1g.5gb") // A100 40 GB
	f(3, 3, 20096, 40536, "3g.20gb")
	f(1, 1, 9728, 81559, "1g.10gb") // H100 80 GB
	f(7, 7, 81079, 81559, "7g.80gb")
	f(1, 1, 16384, 143771, "1g.18gb") // H200
	f(3, 3, 71424, 143771, "3g.71gb")
	f(1, 3, 71424, 143771, "1c.3g.71gb")
	f(1, 1, 16384, 0, "")
}

func TestVerdict(t *testing.T) {
	f := func(ret, kind uint32, want class) {
		t.Helper()
		if got := verdict(&nvml.FieldValue{NvmlReturn: ret, ValueType: kind}); got != want {
			t.Errorf("return %d, type %d: %d, want %d", ret, kind, got, want)
		}
	}
	f(0, 1, good)
	f(untouched, 1, good)                // a value without a code
	f(untouched, untouched, unsupported) // not touched at all
	f(uint32(nvml.ERROR_NOT_SUPPORTED), untouched, unsupported)
	f(uint32(nvml.ERROR_GPU_IS_LOST), 0, lost)
}

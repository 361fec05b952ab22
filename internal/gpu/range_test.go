// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"math"
	"testing"
)

func TestEveryFieldHasARange(t *testing.T) {
	for i := range table {
		f, r := &table[i], RangeAt(Index(i))
		if r.Min >= r.Max || r.Above < r.Max {
			t.Errorf("%s: range %+v", f.Name, *r)
		}
	}
	for id := range fieldRanges {
		if _, ok := IndexOf(id); !ok {
			t.Errorf("field %d has a range and is in no table", id)
		}
	}
}

func TestRanges(t *testing.T) {
	f := func(id FieldID, v, want float64) {
		t.Helper()
		i, _ := IndexOf(id)
		got, ok := RangeAt(i).Limit(v)
		if ok == math.IsNaN(want) || ok && got != want {
			t.Errorf("%s %g: %g, %v; want %g", id, v, got, ok, want)
		}
	}
	none := math.NaN()
	f(GPUUtil, 0, 0)
	f(GPUUtil, 100, 100)
	f(GPUUtil, 250, none)
	f(GPUUtil, -1, none)
	f(GPUUtil, 1e30, none)
	f(GPUUtil, math.NaN(), none)
	f(GPUUtil, math.Inf(1), none)
	f(SMActive, 1, 1)
	f(SMActive, 1.294, 1) // NVIDIA/DCGM#152
	f(SMActive, 1.6, none)
	f(SMActive, -0.01, none)
	f(PowerUsage, 700.5, 700.5)
	f(PowerUsage, 1e5, none)
	f(GPUTemp, -10, -10)
	f(GPUTemp, 151, none)
	f(FanSpeed, 120, 120)
	f(FBUsed, 294_912, 294_912) // 288 GB
	f(FBUsed, 1<<25, none)
	f(TotalEnergy, 9e15, 9e15)
	f(TotalEnergy, 1<<63, none)
	f(TotalEnergy, -1, none)
	f(XIDErrors, 172, 172)
	f(XIDErrors, 1e6, none)
	f(PCIeTxBytes, 128e9, 128e9)
	f(PCIeTxBytes, 1e30, none)
}

func TestBlanks(t *testing.T) {
	for _, v := range []float64{
		2147483632, 2147483633, 2147483634, 2147483635, 140737488355328, 140737488355331,
		math.MaxInt64 - 15, math.MaxInt64, math.Inf(1),
	} {
		if !IsBlank(v) {
			t.Errorf("%f is a value", v)
		}
	}
	for _, v := range []float64{0, -1, 2147483631, 2147483636, 140737488355327, 140737488355332, 1e18, math.NaN()} {
		if IsBlank(v) {
			t.Errorf("%f is no value", v)
		}
	}
}

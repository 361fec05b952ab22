// SPDX-License-Identifier: Apache-2.0

package promtext

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
)

func TestLines(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		var l Line
		if err := l.Parse([]byte(in)); err != nil {
			t.Errorf("%s: %v", in, err)
		} else if got := l.String(); got != want {
			t.Errorf("%s\n got %s\nwant %s", in, got, want)
		}
	}
	f(`up 1`, `up 1`)
	f(`a:b_c9 -1.5e3`, `a:b_c9 -1500`)
	f("\tup \t 1 ", `up 1`)
	f(`up{} 1`, `up 1`)
	f(`up{a="b"} 1`, `up a="b" 1`)
	f(`up { a = "b" , c="d", } 1`, `up a="b" c="d" 1`)
	f(`up{a="}{,\"\\\n\t"} 0.25`, `up a="}{,\"\\\n\\t" 0.25`)
	f(`up{a=""} +Inf`, `up a="" +Inf`)
	f(`up NaN`, `up NaN`)
	f(`up 1 1700000000123`, `up 1 @1700000000123`)
	f(`up 1 1700000000.123`, `up 1 @1700000000123`)
	f(`up{a="b"} 1 # {trace="x}"} 0.5`, `up a="b" 1`)
	f(`up 1 1700000000.5 # {t="x"} 0.5 1700000000`, `up 1 @1700000000500`)
	f(`{"a name", b="c"} 1`, `a name b="c" 1`)
	f(`DCGM_FI_DEV_POWER_USAGE{gpu="0"} 378.461000`, `DCGM_FI_DEV_POWER_USAGE gpu="0" 378.461`)
}

func TestBadLines(t *testing.T) {
	f := func(in string, want error) {
		t.Helper()
		var l Line
		if err := l.Parse([]byte(in)); err != want {
			t.Errorf("%s: error %v, want %v", in, err, want)
		}
	}
	f(`9up 1`, ErrName)
	f(`<html>`, ErrName)
	f(`{a="b"} 1`, ErrName)
	f(`up`, ErrValue)
	f(`up `, ErrValue)
	f(`up{a="b"}`, ErrValue)
	f(`up{a="b"}1`, ErrValue)
	f(`up one`, ErrValue)
	f(`up 1 soon`, ErrStamp)
	f(`up 1 1e40`, ErrStamp)
	f(`up 1 2 3`, ErrStamp)
	f(`up{a="b" 1`, ErrLabels)
	f(`up{a="b`, ErrLabels)
	f(`up{a=b} 1`, ErrLabels)
	f(`up{a} 1`, ErrLabels)
	f(`up{a="b"c="d"} 1`, ErrLabels)
	f(`up{`, ErrLabels)
	f(`{"a":1}`, ErrLabels)
	f(`x{modelName="NVIDIA "Q" A\100"} 1`, ErrLabels) // dcgm-exporter before 4.8.3
}

func TestFloatsAreAsStrconvReadsThem(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		s := strconv.FormatFloat(math.Float64frombits(r.Uint64()), 'g', -1, 64)
		if r.IntN(2) == 0 {
			s = strconv.FormatFloat(r.Float64()*math.Pow10(r.IntN(12)), 'f', r.IntN(7), 64)
		}
		want, err := strconv.ParseFloat(s, 64)
		got, ok := Float([]byte(s))
		if ok != (err == nil) || math.Float64bits(got) != math.Float64bits(want) && !math.IsNaN(want) {
			t.Fatalf("%s: got %v, %v; want %v, %v", s, got, ok, want, err)
		}
		tail, _, err := Tail([]byte(" " + s))
		if ok != (err == nil) || math.Float64bits(tail) != math.Float64bits(got) {
			t.Fatalf("a line's tail %q: %v, %v; want %v, %v", s, tail, err, got, ok)
		}
	}
	for _, s := range []string{"", ".", "-", "1..2", "1.2.3", "0x", "1e", "1_0"} {
		if v, ok := Float([]byte(s)); ok {
			t.Errorf("%q is %v", s, v)
		}
		if v, _, err := Tail([]byte(" " + s)); err == nil {
			t.Errorf("a line's tail %q is %v", s, v)
		}
	}
	for _, digits := range []string{"999999999999999", "1000000000000001", "12345678901234567", "1.23456789012345", "1.234567890123456", "5.", ".5", "00000000000000001"} {
		want, _ := strconv.ParseFloat(digits, 64)
		if got, _, err := Tail([]byte(" " + digits)); got != want || err != nil {
			t.Errorf("a line's tail %q is %v, %v", digits, got, err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package load

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestShapes(t *testing.T) {
	f := func(form Form, text string, at time.Duration, want float64) {
		t.Helper()
		s, err := ParseShape(form, text)
		if err != nil {
			t.Error(err)
			return
		}
		if got := s.At(at); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s %s at %v: %v, want %v", form, text, at, got, want)
		}
	}
	f(Constant, "0.6", time.Hour, 0.6)
	f(Ramp, "0:1:10s", 2500*time.Millisecond, 0.25)
	f(Ramp, "1:0.5:10s", time.Minute, 0.5)
	f(Steps, "0,0.25,1:5s", 5*time.Second, 0.25)
	f(Steps, "0,0.25,1:5s", time.Hour, 1)
	f(Sine, "0.2:0.8:8s", 0, 0.2)
	f(Sine, "0.2:0.8:8s", 4*time.Second, 0.8)
	f(Sine, "0.2:0.8:8s", 10*time.Second, 0.5)
	f(Burst, "1:2s:8s", 1999*time.Millisecond, 1)
	f(Burst, "1:2s:8s", 2*time.Second, 0)
	f(Burst, "1:2:8:0.1", 10*time.Second, 1)
	f(Burst, " 1:2s:8s:0.1", 9*time.Second, 0.1)
}

func TestMean(t *testing.T) {
	s, _ := ParseShape(Ramp, "0:1:10s")
	if got := s.Mean(4*time.Second, 6*time.Second); math.Abs(got-0.5) > 1e-9 {
		t.Errorf("%v, want 0.5", got)
	}
}

func TestShapesAreRefused(t *testing.T) {
	for _, c := range []struct {
		form Form
		text string
	}{
		{Constant, "1.2"},
		{Constant, "NaN"},
		{Constant, ""},
		{Constant, "0.5:1"},
		{Ramp, "0:1"},
		{Ramp, "0:1:0s"},
		{Ramp, "0:1:1ms"},
		{Steps, "0,x:5s"},
		{Steps, ":5s"},
		{Sine, "0:2:5s"},
		{Burst, "1:2s"},
		{Burst, "1:0s:0s"},
		{Ramp, "0:1:-3s"},
		{Ramp, "0:1:1e300"},
	} {
		if s, err := ParseShape(c.form, c.text); err == nil {
			t.Errorf("%s %q: %+v", c.form, c.text, s)
		}
	}
}

// Whatever the text, a shape that is read has a duty of 0 to 1 at all times, and survives JSON.
func FuzzShape(f *testing.F) {
	for _, form := range []Form{Constant, Ramp, Steps, Sine, Burst} {
		f.Add(string(form), "0:1:10s", int64(time.Second))
		f.Add(string(form), "1:2s:8s:0.1", int64(-time.Second))
		f.Add(string(form), "0.5,1:5", int64(math.MaxInt64))
	}
	f.Fuzz(func(t *testing.T, form, text string, at int64) {
		s, err := ParseShape(Form(form), text)
		if err != nil {
			return
		}
		if v := s.At(time.Duration(at)); !(v >= 0 && v <= 1) {
			t.Errorf("%s %q at %d: %v", form, text, at, v)
		}
		b, err := json.Marshal(s)
		var back Shape
		if err != nil || json.Unmarshal(b, &back) != nil || !cmp.Equal(s, back) {
			t.Errorf("%+v is %+v after JSON (%v)", s, back, err)
		}
	})
}

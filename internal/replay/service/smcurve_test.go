// SPDX-License-Identifier: Apache-2.0

package service

import (
	"math"
	"testing"
)

func TestSMCurve(t *testing.T) {
	c, err := NewSMCurve([]SMPoint{{1, 0.2}, {8, 0.4}, {64, 0.9}})
	if err != nil {
		t.Fatal(err)
	}
	for batch, want := range map[float64]float64{0.5: 0.2, 1: 0.2, 4.5: 0.3, 8: 0.4, 36: 0.65, 64: 0.9, 500: 0.9} {
		if got := c.at(batch); math.Abs(got-want) > 1e-9 {
			t.Errorf("at %v: %v, want %v", batch, got, want)
		}
	}
	if got := SMCurve(nil).at(24); math.Abs(got-0.65) > 1e-9 {
		t.Errorf("the assumption at 24: %v", got)
	}
	for _, bad := range [][]SMPoint{nil, {{1, 0.5}}, {{1, 0.5}, {1, 0.6}}, {{2, 0.5}, {1, 0.6}}, {{0, 0.5}, {1, 0.6}}, {{1, 0.5}, {2, 1.1}}, {{1, math.NaN()}, {2, 0.6}}, make([]SMPoint, 300)} {
		if _, err := NewSMCurve(bad); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
	measured, assumed := &Model{Prefill: 1, SMActivity: c}, &Model{Prefill: 1}
	if got := smActive(measured, 1, 0, 36); math.Abs(got-0.65) > 1e-9 {
		t.Errorf("a measured server: %v", got)
	}
	if got := smActive(assumed, 1, 0.5, 24); math.Abs(got-(0.97+0.65)/2) > 1e-9 {
		t.Errorf("half of the time in prefill: %v", got)
	}
}

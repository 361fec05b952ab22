// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"math"
	"testing"
	"time"
)

func TestTheAggregatesOfAMinute(t *testing.T) {
	var a Accumulator
	nan := math.NaN()
	a.Add(at(0), "signal/gpu", 10, 2)
	a.Add(at(0).Add(30*time.Second), "signal/gpu", 20, 4)
	a.Add(at(0).Add(40*time.Second), "signal/gpu", nan, 4)
	a.AddMax(at(0).Add(50*time.Second), "gpu/util", 50, 90, nan)
	a.Add(at(1), "signal/gpu", -3, nan) // begins the next minute
	if got := fmt.Sprint(a.Take(at(0))); got != "[{signal/gpu 15 20 3} {gpu/util 50 90 NaN}]" {
		t.Errorf("minute 0 is %s", got)
	}
	if got := a.Take(at(0)); got != nil {
		t.Errorf("minute 0 again is %v", got)
	}
	if got := fmt.Sprint(a.Take(at(1))); got != "[{signal/gpu -3 -3 NaN}]" {
		t.Errorf("minute 1 is %s", got)
	}
	if got := a.Take(at(2)); got != nil {
		t.Errorf("a minute without readings is %v", got)
	}
	a.Add(at(3), "signal/gpu", 1, nan)
	a.Add(at(7), "signal/gpu", 2, nan)
	if got := a.Take(at(6)); got != nil {
		t.Errorf("a minute without readings is %v", got)
	}
}

func TestAnAccumulatorIsBounded(t *testing.T) {
	var a Accumulator
	for i := range 2 * MaxMetrics {
		a.Add(at(0), Metric(fmt.Sprint("signal/", i)), 1, 1)
	}
	if got := a.Take(at(0)); len(got) != MaxMetrics {
		t.Errorf("%d metrics, want %d", len(got), MaxMetrics)
	}
}

// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"math"
	"testing"
	"time"
)

func TestTheAggregatesOfAMinute(t *testing.T) {
	var a accumulator
	nan := math.NaN()
	add := func(second int, values ...Value) { a.add(at(0).Add(time.Duration(second)*time.Second), values) }
	add(0, Value{"gpu", 10, 10, 2})
	add(30, Value{"gpu", 20, 20, 4}, Value{"util", 50, 90, nan})
	add(40, Value{"gpu", nan, nan, 4})
	add(60, Reading("gpu", -3)) // begins the next minute
	add(59, Reading("gpu", 99)) // late
	if got := fmt.Sprint(a.take(at(0))); got != "[{gpu 15 20 3} {util 50 90 NaN}]" {
		t.Errorf("minute 0 is %s", got)
	}
	if got := a.take(at(0)); got != nil {
		t.Errorf("minute 0 again is %v", got)
	}
	if got := fmt.Sprint(a.take(at(1))); got != "[{gpu -3 -3 NaN}]" {
		t.Errorf("minute 1 is %s", got)
	}
	if got := a.take(at(2)); got != nil {
		t.Errorf("a minute without readings is %v", got)
	}
	add(3*60, Reading("gpu", 1))
	add(7*60, Reading("gpu", 2))
	if got := a.take(at(6)); got != nil {
		t.Errorf("a minute without readings is %v", got)
	}
}

func TestAnAccumulatorIsBounded(t *testing.T) {
	var a accumulator
	for i := range 2 * MaxMetrics {
		a.add(at(0), []Value{Reading(Metric(fmt.Sprint("m", i)), 1)})
	}
	if got := a.take(at(0)); len(got) != MaxMetrics {
		t.Errorf("%d metrics, want %d", len(got), MaxMetrics)
	}
}

// SPDX-License-Identifier: Apache-2.0

package peers

import "testing"

// feed records a constant concurrency for some seconds. It returns the last decision.
func feed(k *KPA, from, seconds, ready int, concurrency float64) (replicas int) {
	for now := from; now < from+seconds; now++ {
		k.Record(now, concurrency)
		if now%KPATick == 0 {
			replicas, _ = k.Scale(now, ready)
		}
	}
	return replicas
}

func TestKPA(t *testing.T) {
	k := NewKPA(10, 60, 0, 1, 4)
	if got := feed(k, 1, 60, 4, 4); got != 4 {
		t.Errorf("just started: %d, want the initial 4", got)
	}
	if got := feed(k, 61, 60, 4, 40); got != 4 {
		t.Errorf("on target: %d, want 4", got)
	}
	// 60 per pod for 8 s: the panic window needs 24 replicas, more than twice the ready ones.
	if got := feed(k, 121, 8, 4, 240); got != 24 || !k.panicking {
		t.Errorf("in panic (%v): %d, want 24", k.panicking, got)
	}
	// In panic mode there is no scale-down, until a stable window after the last burst.
	if got := feed(k, 129, 50, 4, 40); got != 24 {
		t.Errorf("after the burst: %d, want 24", got)
	}
	if got := feed(k, 179, 80, 4, 40); got != 4 || k.panicking {
		t.Errorf("after the panic (%v): %d, want 4", k.panicking, got)
	}
	// Down by at most half of the ready pods.
	if got := feed(k, 259, 70, 4, 0.4); got != 2 {
		t.Errorf("idle: %d, want 2", got)
	}
}

func TestKPAScaleDownDelay(t *testing.T) {
	k := NewKPA(10, 30, 100, 1, 4)
	feed(k, 1, 60, 4, 40)
	if got := feed(k, 61, 90, 4, 4); got != 4 {
		t.Errorf("within the delay: %d, want 4", got)
	}
	if got := feed(k, 151, 60, 4, 4); got != 2 {
		t.Errorf("after the delay: %d, want 2", got)
	}
}

// Seconds without a record count as zero between records, and are left out at the end.
func TestKPAGaps(t *testing.T) {
	f := func(what string, record map[int]float64, now int, want float64) {
		t.Helper()
		a := newAverage(10)
		for s := range 40 {
			if v, ok := record[s]; ok {
				a.record(s, v)
			}
		}
		if got := a.mean(now); got != want {
			t.Errorf("%s: %g, want %g", what, got, want)
		}
	}
	f("no record", nil, 5, 0)
	f("a gap", map[int]float64{1: 6, 3: 6}, 3, 4)
	f("no records since", map[int]float64{1: 6, 3: 6}, 9, 4)
	f("one record outside the window", map[int]float64{1: 6, 3: 6}, 11, 3)
	f("no record in a window", map[int]float64{1: 6, 3: 6}, 13, 0)
	f("a record after that", map[int]float64{1: 6, 3: 6, 30: 8}, 30, 8)
}

// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"math"
	"testing"
	"time"
)

// t0 is when the tests begin.
var t0 = time.Unix(1_700_000_000, 0)

func TestNeed(t *testing.T) {
	w := Model{Capacity: 10}
	f := func(offered, target float64, want int) {
		t.Helper()
		if got := w.Need(offered, target); got != want {
			t.Errorf("Need(%v, %v) = %d, want %d", offered, target, got, want)
		}
	}
	f(0, 60, 1)
	f(6, 60, 1)
	f(6.1, 60, 2)
	f(36, 60, 6)
	f(36.01, 60, 7)
}

func TestMoreReplicasRelieveLoad(t *testing.T) {
	w := Model{Capacity: 10, Concurrency: 32}
	now := t0
	run := func(seconds int, offered float64, serving int) Load {
		var l Load
		for range seconds * 5 {
			now = now.Add(200 * time.Millisecond)
			l = w.Step(now, offered, serving)
		}
		return l
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-6*max(1, math.Abs(want)) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	l := w.Step(now, 5, 1)
	near("the first step's utilisation", l.Utilization, 50)
	near("its queue", l.Queue, 0)
	l = run(10, 8, 1)
	near("utilisation", l.Utilization, 80)
	near("in flight", l.Running, 25.6)
	l = run(10, 20, 1)
	near("overload is clamped", l.Utilization, 100)
	near("and queues", l.Queue, 100)
	l = run(5, 20, 4)
	near("draining keeps all busy", l.Utilization, 100)
	near("and empties the queue", l.Queue, 0)
	l = run(1, 20, 4)
	near("then each has its share", l.Utilization, 50)
	l = run(2, 20, 0)
	near("nobody serves", l.Utilization, 0)
	near("all wait", l.Queue, 40)
	near("at no replica", l.Waiting, 0)
}

func TestQueueLimit(t *testing.T) {
	w := Model{Capacity: 1, QueueLimit: 5}
	w.Step(t0, 10, 1)
	l := w.Step(t0.Add(time.Second), 10, 1)
	if l.Queue != 5 || l.Rejected != 4 || l.Served != 1 {
		t.Errorf("%+v", l)
	}
	if l = w.Step(t0, 10, 1); l.Queue != 5 || l.Served != 0 { // a clock set back
		t.Errorf("%+v", l)
	}
}

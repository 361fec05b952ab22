// SPDX-License-Identifier: Apache-2.0

package backtest

import "testing"

// feed gives the KPA so much concurrency for some seconds, on ready pods.
func feed(k *kpa, c *cluster, from, seconds int, each float64) (want int) {
	want = -1
	for now := from; now < from+seconds; now++ {
		s := &c.seen[(now-1)%kept]
		s.at, s.pods = now-1, s.pods[:0]
		for _, p := range c.ready {
			x := sample{pod: int32(p.id), server: true}
			x.value[Concurrency] = float32(each)
			s.pods = append(s.pods, x)
		}
		if w, _ := k.decide(c, now); w >= 0 {
			want = w
		}
	}
	return want
}

func TestKPA(t *testing.T) {
	k := &kpa{target: 10, window: 60, min: 1, max: 100}
	c := fleet(Concurrency, times(4, 0), nil, 0)
	if got := feed(k, c, 1, 60, 1); got != 4 {
		t.Errorf("just begun: %d, want the 4 that there were", got)
	}
	if got := feed(k, c, 61, 60, 10); got != 4 {
		t.Errorf("on target: %d, want 4", got)
	}
	// 60 a pod for 8 s: the panic window wants 24, twice what is ready and more.
	if got := feed(k, c, 121, 8, 60); got != 24 || !k.panicking {
		t.Errorf("in panic (%v): %d, want 24", k.panicking, got)
	}
	// In panic nothing goes down, for a stable window after the last reason.
	if got := feed(k, c, 129, 50, 10); got != 24 {
		t.Errorf("after the burst: %d, want 24", got)
	}
	if got := feed(k, c, 179, 80, 10); got != 4 || k.panicking {
		t.Errorf("after the panic (%v): %d, want 4", k.panicking, got)
	}
	// Down by half of what is ready at most.
	if got := feed(k, c, 259, 70, 0.1); got != 2 {
		t.Errorf("idle: %d, want 2", got)
	}
}

func TestKPADelaysTheWayDown(t *testing.T) {
	k := &kpa{target: 10, window: 30, delay: 100, min: 1, max: 100}
	c := fleet(Concurrency, times(4, 0), nil, 0)
	feed(k, c, 1, 60, 10)
	if got := feed(k, c, 61, 90, 1); got != 4 {
		t.Errorf("within the delay: %d, want 4", got)
	}
	if got := feed(k, c, 151, 60, 1); got != 2 {
		t.Errorf("after the delay: %d, want 2", got)
	}
}

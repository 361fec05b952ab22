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

func TestKPAReads(t *testing.T) {
	k := &kpa{target: 10, window: 60, min: 1, max: 30}
	c := fleet(Concurrency, times(4, 0), nil, 0)
	if got := feed(k, c, 1, 60, 1); got != 4 {
		t.Errorf("just begun: %d, want the 4 that there were", got)
	}
	if got := feed(k, c, 61, 61, 10); got != 4 {
		t.Errorf("on target: %d, want 4", got)
	}
	for range 2000 {
		c.buffer.push(Request{}) // a gateway's queue counts as well
	}
	if got := feed(k, c, 122, 1, 10); got != 30 {
		t.Errorf("a queue: %d, want the most there may be", got)
	}
}

// Nobody serves and nobody asks: what is known of the window still counts, and
// when all of it is unknown, nothing is decided.
func TestKPAWithoutPods(t *testing.T) {
	k := &kpa{target: 10, window: 60, min: 1, max: 30}
	c := fleet(Concurrency, times(1, 0), nil, 0)
	feed(k, c, 1, 60, 10)
	c.ready = nil
	if got := feed(k, c, 61, 10, 0); got != 1 {
		t.Errorf("without pods: %d, want 1", got)
	}
	if got := feed(k, c, 122, 10, 0); got != -1 {
		t.Errorf("after a window without: %d, want nothing", got)
	}
}

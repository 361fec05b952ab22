// SPDX-License-Identifier: Apache-2.0

package backtest

import "testing"

// fleet makes a cluster that was measured at second 0: ready pods at some
// values, loading ones at others, and pods that are still pending.
func fleet(sig Signal, ready, loadingAt []float64, pending int) *cluster {
	c := &cluster{spec: len(ready) + len(loadingAt) + pending}
	s := &c.seen[0]
	put := func(ph phase, v float64, told bool) {
		p := &pod{id: len(c.pods), phase: ph}
		c.pods = append(c.pods, p)
		if ph == serving {
			c.ready = append(c.ready, p)
		}
		if told {
			x := sample{pod: int32(p.id), server: ph == serving}
			x.value[sig] = float32(v)
			s.pods = append(s.pods, x)
		}
	}
	for _, v := range ready {
		put(serving, v, true)
	}
	for _, v := range loadingAt {
		put(loading, v, true)
	}
	for range pending {
		put(pulling, 0, false)
	}
	return c
}

func times(n int, v float64) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = v
	}
	return out
}

// The replicas that Kubernetes 1.37's ReplicaCalculator gives for these pods.
func TestHPAReplicas(t *testing.T) {
	for _, x := range []struct {
		name           string
		ready, loading []float64
		pending        int
		target         float64
		object, pods   int
	}{
		{"1 ready at 100", times(1, 100), nil, 0, 60, 2, 2},
		{"1 ready at 100, 1 pending", times(1, 100), nil, 1, 60, 2, 2},
		{"1 ready at 100, 1 loading at 0", times(1, 100), times(1, 0), 0, 60, 1, 2},
		{"4 ready at 100, 4 loading at 0", times(4, 100), times(4, 0), 0, 60, 4, 7},
		{"4 ready at 100, 4 loading at 100", times(4, 100), times(4, 100), 0, 60, 7, 14},
		{"none ready, 3 loading at 100", nil, times(3, 100), 0, 60, 0, 5},
		{"4 ready at 100, target 92", times(4, 100), nil, 0, 92, 4, 4},
	} {
		for _, k := range []struct {
			kind MetricKind
			want int
		}{{ObjectValue, x.object}, {PodsAverage, x.pods}} {
			c := fleet(GPUUtil, x.ready, x.loading, x.pending)
			h := &hpa{kind: k.kind, signal: GPUUtil, target: x.target, tolerance: 0.1, min: 0, max: 100}
			if got, ok := h.metric(c, &c.seen[0]); !ok || got != k.want {
				t.Errorf("%s, kind %d: %d %v, want %d", x.name, k.kind, got, ok, k.want)
			}
		}
	}
}

// The tolerance of External AverageValue is about status.replicas, whatever they do.
func TestHPAExternalTolerance(t *testing.T) {
	for _, x := range []struct {
		sum       float64
		now       int
		tolerance float64
		want      int
	}{{11, 10, 0.1, 10}, {22, 20, 0.1, 20}, {28, 30, 0.1, 30}, {11, 10, 0, 11}, {28, 30, 0, 28}, {12, 10, 0.1, 12}} {
		c := fleet(Waiting, append(times(x.now-1, 0), x.sum), nil, 0)
		h := &hpa{kind: ExternalAverage, signal: Waiting, target: 1, tolerance: x.tolerance, max: 100}
		if got, _ := h.metric(c, &c.seen[0]); got != x.want {
			t.Errorf("%g wanted of %d with tolerance %g: %d, want %d", x.sum, x.now, x.tolerance, got, x.want)
		}
	}
}

func TestHPAMissingPods(t *testing.T) {
	// Ready pods without a sample carry nothing on the way up and the target on
	// the way down.
	f := func(value float64, told, silent, want int) {
		t.Helper()
		c := fleet(Running, times(told, value), nil, 0)
		for range silent {
			c.pods = append(c.pods, &pod{id: len(c.pods), phase: serving})
			c.spec++
		}
		h := &hpa{kind: PodsAverage, signal: Running, target: 10, tolerance: 0.1, max: 100}
		if got, _ := h.metric(c, &c.seen[0]); got != want {
			t.Errorf("%d at %g, %d silent: %d, want %d", told, value, silent, got, want)
		}
	}
	f(20, 2, 0, 4)
	f(20, 2, 2, 4)  // 40 over 4 pods: on target
	f(40, 2, 2, 8)  // 80 over 4 pods
	f(15, 2, 2, 4)  // 30 over 4 pods would go down: the direction turned, stay
	f(1, 2, 2, 3)   // 2 + 2 × 10 over 4 pods
	f(9.5, 2, 2, 4) // within the tolerance
}

func TestHPALimits(t *testing.T) {
	// Up by the more of 4 pods and 100 % in 15 s; down after the window's most.
	h := &hpa{window: 60, min: 1, max: 100}
	step := func(cur, desired, now, want int) {
		t.Helper()
		got := h.limit(cur, h.stabilize(cur, desired, now), now)
		if got != want {
			t.Errorf("at %d s from %d to %d: %d, want %d", now, cur, desired, got, want)
		}
		if got > cur {
			h.ups = append(h.ups, scaleEvent{now, got - cur})
		} else if got < cur {
			h.downs = append(h.downs, scaleEvent{now, cur - got})
		}
	}
	step(1, 50, 0, 5)
	step(5, 50, 14, 5) // the period began with 1
	step(5, 50, 15, 10)
	step(10, 200, 30, 20)
	step(20, 2, 45, 20) // 50 was wanted within 60 s
	step(20, 2, 89, 20) // 200 was, at 30 s
	step(20, 2, 90, 2)
}

func TestChainDelays(t *testing.T) {
	// The worst ages of reference values: 30 s collection, 15 s scrape, 30 s rule.
	f := func(c Chain, least, most int) {
		t.Helper()
		lo, hi := 1<<30, 0
		for seed := range uint64(200) {
			s := c.seeded(seed)
			for now := 1000; now < 1200; now++ {
				if s.due(now) {
					age := now - s.measured(now)
					lo, hi = min(lo, age), max(hi, age)
				}
			}
		}
		if lo < least || hi > most || hi < most*9/10 {
			t.Errorf("%s %+v: ages %d to %d, want them from %d to near %d", c.Name, c, lo, hi, least, most)
		}
	}
	f(direct(), 1, 1)
	f(classicPods(), 0, 29)
	f(classicGPU(), 0, 29+14)
	f(classicRule(), 0, 29+14+29)
}

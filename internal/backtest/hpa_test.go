// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/peers"
)

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

// What an HPA reads of a service's pods.
func TestHPAReads(t *testing.T) {
	c := fleet(GPUUtil, []float64{90, 60}, []float64{0}, 1)
	c.pods = append(c.pods, &pod{id: 4, phase: waiting}, &pod{id: 5, phase: draining})
	c.spec = 5
	f := func(kind peers.Kind, sig Signal, want peers.Reading) {
		t.Helper()
		h := &hpa{model: peers.HPA{Kind: kind}, signal: sig}
		want.Spec, want.Status = 5, 5
		for i, p := range []peers.Pod{{Ready: true}, {Ready: true}, {}, {Pending: true}, {Pending: true}, {Terminating: true}} {
			if i < len(want.Pods) {
				p.HasSample, p.Milli = want.Pods[i].HasSample, want.Pods[i].Milli
				want.Pods[i] = p
			} else {
				want.Pods = append(want.Pods, p)
			}
		}
		if h.read(c, &c.seen[0]); !cmp.Equal(h.reading, want) {
			t.Errorf("kind %d of %v: %s", kind, sig, cmp.Diff(want, h.reading))
		}
	}
	f(peers.PodsAverage, GPUUtil, peers.Reading{Pods: []peers.Pod{{HasSample: true, Milli: 90000}, {HasSample: true, Milli: 60000}, {HasSample: true}}})
	f(peers.PodsAverage, Waiting, peers.Reading{Pods: []peers.Pod{{HasSample: true}, {HasSample: true}}}) // a server that loads tells nothing
	f(peers.ObjectValue, GPUUtil, peers.Reading{Milli: 50000, HasValue: true})
	f(peers.ExternalAverage, GPUUtil, peers.Reading{Milli: 150000, HasValue: true})

	nobody := fleet(Waiting, nil, times(2, 0), 0)
	for kind, told := range map[peers.Kind]bool{peers.ObjectValue: false, peers.ExternalAverage: true} {
		h := &hpa{model: peers.HPA{Kind: kind}, signal: Waiting}
		if h.read(nobody, &nobody.seen[0]); h.reading.HasValue != told || h.reading.Milli != 0 {
			t.Errorf("kind %d where nobody tells a value: %d %v", kind, h.reading.Milli, h.reading.HasValue)
		}
	}
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

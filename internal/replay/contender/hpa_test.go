// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/scale/peers"
)

// podsAt returns n pods that report a value.
func podsAt(n int, phase service.Phase, signal service.Signal, value float64) (out []service.PodState) {
	for range n {
		x := &service.PodReport{}
		x.Values[signal] = float32(value)
		out = append(out, service.PodState{Phase: phase, Report: x})
	}
	return out
}

// What an HPA reads of a service's pods.
func TestHPAReads(t *testing.T) {
	state := append(podsAt(1, service.Serving, service.GPUUtil, 90), podsAt(1, service.Serving, service.GPUUtil, 60)...)
	state = append(state, podsAt(1, service.Loading, service.GPUUtil, 0)...)
	for _, phase := range []service.Phase{service.Pulling, service.Unschedulable, service.Draining} {
		state = append(state, service.PodState{Phase: phase})
	}
	var d service.Deployment
	d.SetState(0, state, 0)
	f := func(kind peers.Kind, signal service.Signal, want peers.Reading) {
		t.Helper()
		h := &hpa{model: peers.HPA{Kind: kind}, signal: signal}
		want.Spec, want.Status = 6, 5
		for i, p := range []peers.Pod{{Ready: true}, {Ready: true}, {}, {Pending: true}, {Pending: true}, {Terminating: true}} {
			if i < len(want.Pods) {
				p.HasSample, p.Milli = want.Pods[i].HasSample, want.Pods[i].Milli
				want.Pods[i] = p
			} else {
				want.Pods = append(want.Pods, p)
			}
		}
		if h.read(&d, d.At(0)); !cmp.Equal(h.reading, want) {
			t.Errorf("kind %d of %v: %s", kind, signal, cmp.Diff(want, h.reading))
		}
	}
	f(peers.PodsAverage, service.GPUUtil, peers.Reading{Pods: []peers.Pod{{HasSample: true, Milli: 90000}, {HasSample: true, Milli: 60000}, {HasSample: true}}})
	f(peers.PodsAverage, service.Waiting, peers.Reading{Pods: []peers.Pod{{HasSample: true}, {HasSample: true}}}) // a loading server reports nothing
	f(peers.ObjectValue, service.GPUUtil, peers.Reading{Milli: 50000, HasValue: true})
	f(peers.ExternalAverage, service.GPUUtil, peers.Reading{Milli: 150000, HasValue: true})

	var loading service.Deployment
	loading.SetState(0, podsAt(2, service.Loading, service.Waiting, 0), 0)
	for kind, want := range map[peers.Kind]bool{peers.ObjectValue: false, peers.ExternalAverage: true} {
		h := &hpa{model: peers.HPA{Kind: kind}, signal: service.Waiting}
		if h.read(&loading, loading.At(0)); h.reading.HasValue != want || h.reading.Milli != 0 {
			t.Errorf("kind %d without a pod that reports a value: %d %v", kind, h.reading.Milli, h.reading.HasValue)
		}
	}
}

func TestLag(t *testing.T) {
	// The highest ages of reference values: 30 s collection, 15 s scrape, 30 s rule.
	f := func(l Lag, least, most int) {
		t.Helper()
		lo, hi := 1<<30, 0
		for seed := range uint64(200) {
			s := l.withPhases(seed)
			for now := 1000; now < 1200; now++ {
				if s.syncs(now) {
					age := now - s.measuredAt(now)
					lo, hi = min(lo, age), max(hi, age)
				}
			}
		}
		if lo < least || hi > most || hi < most*9/10 {
			t.Errorf("%s %+v: ages %d to %d, want them from %d to near %d", l.Name, l, lo, hi, least, most)
		}
	}
	f(directLag(), 1, 1)
	f(podLag(), 0, 29)
	f(gpuLag(), 0, 29+14)
	f(gpuRuleLag(), 0, 29+14+29)
}

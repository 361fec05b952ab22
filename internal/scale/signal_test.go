// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"slices"
	"testing"
	"time"
)

// reorder is a policy and an observation with their signals in another order.
func reorder(p Policy, o Observation, order []int) (Policy, Observation) {
	signals := p.Signals
	p.Signals = nil
	for _, i := range order {
		p.Signals = append(p.Signals, signals[i])
	}
	o.Totals, o.Pods = pick(o.Totals, order), slices.Clone(o.Pods)
	for k := range o.Pods {
		pod := &o.Pods[k]
		pod.Readings, pod.Paces, pod.Arrivals = pick(pod.Readings, order), pick(pod.Paces, order), pick(pod.Arrivals, order)
	}
	return p, o
}

// pick is what in has at these indices; zero where it has none.
func pick[T any](in []T, order []int) []T {
	out := make([]T, len(order))
	for k, i := range order {
		if i < len(in) {
			out[k] = in[i]
		}
	}
	return out
}

// Two saturated replicas become four, which process the backlog for three
// seconds. An idle signal beside the saturated one changes nothing, in either
// order: more are asked for while the backlog lasts, and no longer.
func TestIdleSignalDoesNotEndSaturation(t *testing.T) {
	alone := utilPolicy()
	both := alone
	both.Signals = append(slices.Clone(alone.Signals), Signal{Name: "waiting", Target: 2})
	f := func(what string, p Policy, order []int) {
		t.Helper()
		p, _ = reorder(p, Observation{}, order)
		got, s := run(p, State{}, func(i int, cur int32, now time.Time) Observation {
			value, serving := 100.0, 2
			if i >= 20 {
				serving = 4
			}
			if i >= 23 {
				value = 55
			}
			values := slices.Repeat([]float64{value}, serving)
			o := with(seen(now, values...), now, max(0, int(cur)-serving), Starting, time.Duration(i)*time.Second)
			for k := range serving {
				o.Pods[k].Readings = []Reading{{Value: value, At: now, OK: true}, {At: now, OK: true}}
			}
			if serving == 4 {
				o.Pods[3].Since = t0.Add(20 * time.Second)
			}
			_, o = reorder(both, o, order)
			return o
		}, 40, 2)
		if most := slices.Max(got); most != 7 || got[39] != 4 {
			t.Errorf("%s: up to %d replicas, and %d in the end, want 7 and 4", what, most, got[39])
		}
		for _, x := range s.Signals {
			if !x.SaturatedSince.IsZero() {
				t.Errorf("%s: %s is saturated since %v", what, x.Name, x.SaturatedSince)
			}
		}
	}
	f("alone", alone, []int{0})
	f("before the idle one", both, []int{0, 1})
	f("after the idle one", both, []int{1, 0})
}

// Two signals at their ceilings ask for one probe, the larger.
func TestTwoSaturatedSignalsProbeTogether(t *testing.T) {
	p := utilPolicy()
	p.Signals[0].Target = 80
	p.Signals = append(p.Signals, Signal{Name: "cache", Unit: "%", Target: 90, Ceiling: 100})
	o := seen(t0, 100, 100, 100, 100, 100, 100)
	for k := range o.Pods {
		o.Pods[k].Readings = append(o.Pods[k].Readings, o.Pods[k].Readings[0])
	}
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		p, o := reorder(p, o, order)
		d, s := Decide(p, o, State{}, t0)
		if d.Replicas != 9 || d.Rule != RuleSaturated || s.Probed != 6 {
			t.Errorf("order %v: %d replicas by %s, probed with %d serving; want 9 by a probe with 6: %s", order, d.Replicas, d.Rule, s.Probed, d.Sentence())
		}
		if d, _ := Decide(p, o, s, t0.Add(time.Second)); has(d, RuleSaturated) {
			t.Errorf("order %v: a second probe: %s", order, d.Sentence())
		}
	}
}

// The rule of a decision is that of the signal that decides, wherever it stands.
func TestRuleIsOfTheDecidingSignal(t *testing.T) {
	p := utilPolicy()
	p.Signals = append(p.Signals, Signal{Name: "waiting", Target: 2})
	o := with(seen(t0, 100, 100), t0, 3, Starting, time.Second)
	for k := range o.Pods[:2] {
		o.Pods[k].Readings = append(o.Pods[k].Readings, Reading{At: t0, OK: true})
	}
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		p, o := reorder(p, o, order)
		if d, _ := Decide(p, o, State{}, t0); d.Replicas != 5 || d.Rule != RuleStarting {
			t.Errorf("order %v: %d replicas by %s, want 5 by %s: %s", order, d.Replicas, d.Rule, RuleStarting, d.Sentence())
		}
	}
}

// An overload of one signal's servers does not stop another from learning the
// time to the first token.
func TestOverloadIsOfOneSignal(t *testing.T) {
	p := Policy{Min: 1, Max: 20}
	for _, name := range []string{"small", "large"} {
		p.Signals = append(p.Signals, Signal{Name: name, Target: 8, Law: Batching, FirstLimit: 1})
	}
	_, s := run(p, State{}, func(_ int, _ int32, now time.Time) Observation {
		o := seen(now, 100)
		pace := Pace{Batch: 6, TokenSeconds: 0.02, FirstTokenSeconds: 0.2, FirstTokensPerSecond: 2, At: now, OK: true}
		o.Pods[0].Readings = append(o.Pods[0].Readings, Reading{Value: 6, At: now, OK: true})
		o.Pods[0].Paces = []Pace{pace, pace}
		return o
	}, 60, 1)
	if small, large := s.Signals[0], s.Signals[1]; small.OverloadedAt.IsZero() || small.FirstTokenLatency.N != 0 || !large.OverloadedAt.IsZero() || large.FirstTokenLatency.N == 0 {
		t.Errorf("the overloaded signal has %+v, the other one %+v", small, large)
	}
}

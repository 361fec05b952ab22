// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/promise"
)

// The demand of a signal is an equation: numbers, rule, result.
func TestDemandSentences(t *testing.T) {
	f := func(after int32, facts Facts, want string) {
		t.Helper()
		if got := (Step{Rule: RuleDemand, After: after, Facts: facts}).Sentence(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	f(4, Facts{Signal: "Utilization", Unit: "%", Value: 97, Target: 60, Serving: 2, Fresh: 2, Demand: 3.23, Mean: 3.23},
		"Utilization: 2 serving × 97 % ÷ target 60 % = 4 replicas")
	f(1, Facts{Signal: "SMActive", Unit: "ratio", Value: 0.3, Target: 0.6, Serving: 2, Fresh: 2, Demand: 1, Mean: 1, MostOf: 2},
		"SMActive: 2 serving × 0.3 ÷ target 0.6 = 1 replica, the most of 2 signals")
	f(5, Facts{Signal: "Utilization", Unit: "%", Value: 97, Target: 60, Serving: 2, Fresh: 2, Demand: 3.23, Mean: 4.1, Averaged: true, Window: 30 * time.Second},
		"Utilization: 2 serving × 97 % ÷ target 60 % = 3.23, 4.1 on average over 30 s: 5 replicas")
	f(8, Facts{Signal: "Utilization", Unit: "%", Value: 5, Target: 60, Serving: 10, Fresh: 3, Demand: 0.25, Mean: 0.25},
		"Utilization: 3 of 10 serving × 5 % ÷ target 60 % = 0.25, 7 without a value counted at target: 8 replicas")
	f(3, Facts{Signal: "sum(backlog)", Value: 12, Target: 5, Total: true, Demand: 2.4, Mean: 2.4},
		"sum(backlog): 12 ÷ target 5 per replica = 3 replicas")
	f(5, Facts{Signal: "depth", Value: 12, Target: 5, Total: true, Whole: true, Serving: 2, Demand: 4.8, Mean: 4.8},
		"depth: 2 serving × 12 ÷ target 5 = 5 replicas")

	planned := Facts{Signal: "vllm requests", Planned: true, Objective: 0.99, Busy: 1.2, Highest: 1.5, Window: 10 * time.Minute, BusyTarget: 0.3, Demand: 5, Mean: 5}
	f(5, planned, "vllm requests: the load keeps 1.2 replicas busy, at most 1.5 within 10 min; 99 % within the limits take replicas that are busy to 30 % = 5 replicas")
	planned.Missed = promise.Misses{Planned: 0.004, Starting: 0.0035, Server: 0.0001}
	f(5, planned, "vllm requests: the load keeps 1.2 replicas busy, at most 1.5 within 10 min; 99 % within the limits take replicas that are busy to 30 % = 5 replicas; "+
		"0.76 % of the last day missed a limit: 0.4 % as planned, 0.35 % while replicas started")

	requests := Facts{Signal: "vllm requests", Value: 22.1, Target: 8, Serving: 2, Fresh: 2, Batching: true, Load: 1.4, Demand: 2.8, Mean: 2.8}
	f(3, requests, "vllm requests: 2 serving × 140 % of capacity = 3 replicas (22.1 in flight per replica, target 8), capacity from the target, no arrival rate")
	requests.Arrivals = 5.2
	f(3, requests, "vllm requests: 2 serving × 140 % of capacity = 3 replicas (22.1 in flight per replica, target 8), capacity from the target, "+
		"5.2 requests/s arrive, capacity in requests/s not learned yet")
	requests.Capacity, requests.LearnedFrom = 2.6, 14*time.Minute
	f(3, requests, "vllm requests: 2 serving × 140 % of capacity = 3 replicas (22.1 in flight per replica, target 8), capacity from the target, "+
		"5.2 requests/s ÷ 2.6 per replica = 2, learned from 14 min of traffic")
	requests.Arrivals = 31
	f(3, requests, "vllm requests: 2 serving × 140 % of capacity = 3 replicas (22.1 in flight per replica, target 8), capacity from the target, "+
		"31.0 requests/s ÷ 2.6 per replica = 11.9, learned from 14 min of traffic, not used yet")
	requests.Arriving, requests.Demand, requests.MostOf = true, 11.92, 2
	f(12, requests, "vllm requests: 31.0 requests/s ÷ 2.6 per replica = 12 replicas (22.1 in flight per replica, target 8), "+
		"capacity learned from 14 min of traffic, the most of 2 signals")
	requests.Learned, requests.Target, requests.LearnedFrom, requests.MostOf = true, 12.5, 0, 1
	f(12, requests, "vllm requests: 31.0 requests/s ÷ 2.6 per replica = 12 replicas (22.1 in flight per replica, learned target 12.5), capacity learned earlier")
	requests.Limited, requests.LearnedFrom = true, 40*time.Second
	f(6, requests, "vllm requests: 31.0 requests/s ÷ 2.6 per replica, limited to twice the demand of the requests in flight: 6 replicas "+
		"(22.1 in flight per replica, learned target 12.5), capacity learned from 40 s of traffic")
}

// A decision on requests has the arrival rate, the capacity and where it was
// learned, the batch, the target and the signal that decides.
func TestDecisionOnRequestsExplainsItself(t *testing.T) {
	p := sloPolicy(8, 0)
	p.Signals = append(p.Signals, Signal{Name: "KV cache", Unit: "%", Target: 80, Ceiling: 100})
	var s State
	var d Decision
	now := t0
	show := func(batch, arriving float64) {
		o := fleet(now, 4, batch, arriving)
		for k := range o.Pods {
			o.Pods[k].Readings = append(o.Pods[k].Readings[:1:1], Reading{Value: 10, At: now, OK: true})
		}
		d, s = Decide(p, o, s, now)
		now = now.Add(time.Second)
	}
	for range 600 {
		show(8, 2)
	}
	for range 20 {
		show(60, 10)
	}
	if !d.Inputs[0].Deciding || d.Inputs[1].Deciding {
		t.Errorf("the deciding signal is not marked: %+v", d.Inputs)
	}
	if got := d.Steps[0].Facts; !got.Arriving || got.MostOf != 2 || got.Capacity < 1.9 || got.Capacity > 2.1 || got.LearnedFrom < 5*time.Minute {
		t.Errorf("facts %+v", got)
	}
	for _, want := range []string{" requests/s ÷ 2.0 per replica", "60 in flight per replica, target 8", "capacity learned from ", " min of traffic", "the most of 2 signals"} {
		if !strings.Contains(d.Sentence(), want) {
			t.Errorf("no %q in %s", want, d.Sentence())
		}
	}
	for _, step := range d.Steps[1:] {
		if step.Facts.MostOf != 0 {
			t.Errorf("another step decides, too: %s", step.Sentence())
		}
	}
}

// Why is the sentence of the step that made the decision: of several signals the one that decides, and not a step that comes
// after it and changes nothing.
func TestWhy(t *testing.T) {
	f := func(d Decision, want string) {
		t.Helper()
		if got := d.Why(); got != want {
			t.Errorf("%q, want %q, of: %s", got, want, d.Sentence())
		}
	}
	demand := func(signal string, after int32) Step {
		return Step{Rule: RuleDemand, Before: 2, After: after, Facts: Facts{Signal: signal, Total: true, Value: float64(after), Target: 1, Demand: float64(after)}}
	}
	two := Decision{Rule: RuleDemand, Steps: []Step{demand("a", 1), demand("b", 4), demand("c", 2)}, Inputs: []Input{{Signal: "a"}, {Signal: "b", Deciding: true}, {Signal: "c"}}}
	f(two, "b: 4 ÷ target 1 per replica = 4 replicas")
	limited := two
	limited.Rule = RuleBounds
	limited.Steps = append(slices.Clone(two.Steps), Step{Rule: RuleBounds, Before: 4, After: 3, Facts: Facts{Limit: 3}}, Step{Rule: RuleRate, Before: 3, After: 3})
	f(limited, "maxReplicas is 3: 3 instead of 4")
	f(Decision{Rule: RuleMissing, Steps: []Step{demand("a", 2)}}, "a: 2 ÷ target 1 per replica = 2 replicas")
	f(Decision{}, "")
}

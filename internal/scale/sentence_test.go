// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/facts"
)

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
	got := d.Steps[0].Facts.(*facts.Demand)
	if b := got.Batch; !b.Arriving || d.Steps[0].MostOf != 2 || b.Capacity < 1.9 || b.Capacity > 2.1 || b.LearnedFrom < 5*time.Minute {
		t.Errorf("facts %+v", got)
	}
	for _, want := range []string{" requests/s ÷ 2.0 per replica", "60 in flight per replica, target 8", "capacity learned from ", " min of traffic", "the most of 2 signals"} {
		if !strings.Contains(d.Sentence(), want) {
			t.Errorf("no %q in %s", want, d.Sentence())
		}
	}
	for _, step := range d.Steps[1:] {
		if step.MostOf != 0 {
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
		return Step{Rule: RuleDemand, Signal: signal, Before: 2, After: after, Facts: &facts.Demand{Reading: facts.Reading{Value: float64(after)}, Total: true, Target: 1, Demand: float64(after)}}
	}
	two := Decision{Rule: RuleDemand, Steps: []Step{demand("a", 1), demand("b", 4), demand("c", 2)}, Inputs: []Input{{Signal: "a"}, {Signal: "b", Deciding: true}, {Signal: "c"}}}
	f(two, "b: 4 ÷ target 1 per replica = 4 replicas")
	limited := two
	limited.Rule = RuleBounds
	limited.Steps = append(slices.Clone(two.Steps), Step{Rule: RuleBounds, Before: 4, After: 3, Facts: facts.Max(3)}, Step{Rule: RuleRate, Before: 3, After: 3})
	f(limited, "maxReplicas is 3: 3 instead of 4")
	f(Decision{Rule: RuleMissing, Steps: []Step{demand("a", 2)}}, "a: 2 ÷ target 1 per replica = 2 replicas")
	f(Decision{}, "")
}

// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"slices"
	"time"
)

// Decide says how many replicas the workload should have now, and why. It is
// pure: the same arguments give the same results, and none of them is changed.
func Decide(p Policy, o Observation, s State, now time.Time) (Decision, State) {
	e := engine{p: &p, o: &o, now: now, census: takeCensus(&p, &o, now)}
	s = e.observe(s)

	want := e.demand(&s)
	s.Wants = remember(s.Wants, Want{At: now, Low: want, High: want}, max(p.downWindow(), p.Up.Window))
	want = e.stabilize(want, &s)
	want = e.limit(want, &s)
	want = e.bound(want)

	d := Decision{
		Time: now, Current: o.Replicas, Replicas: want, Steps: e.steps, Inputs: e.inputs,
		Serving: e.serving, Starting: e.starting, Unschedulable: e.unschedulable + e.expired,
	}
	d.Rule = lastWord(&d)
	if d.Replicas < d.Current {
		d.Victims = victims(&o, int(d.Current-d.Replicas))
	}
	return d, s
}

// engine is one call of Decide on its way through the rules.
type engine struct {
	p   *Policy
	o   *Observation
	now time.Time
	census
	steps  []Step
	inputs []Input
}

// step notes that a rule turned before into after, and returns after.
func (e *engine) step(r Rule, before, after int32, f Facts) int32 {
	e.steps = append(e.steps, Step{Rule: r, Before: before, After: after, Facts: f})
	return after
}

// base is the capacity that there is or will soon be. Pods beyond what was
// asked for are about to go, and holding on must not ask for them back.
func (e *engine) base() int32 { return min(e.serving+e.starting, e.o.Replicas) }

// observe brings the state up to what is seen now.
func (e *engine) observe(s State) State {
	switch {
	case s.Since.IsZero() || s.Since.After(e.now): // the first call, or the clock went back
		s.Since = e.now
	default:
		s.Changes = record(s.Changes, Change{At: e.now, Delta: e.o.Replicas - s.Replicas}, e.p.longestPeriod())
	}
	if s.LastData.After(e.now) {
		s.LastData = e.now
	}
	s.Replicas = e.o.Replicas
	return s
}

// stabilize holds a change until the whole window agrees with it.
func (e *engine) stabilize(want int32, s *State) int32 {
	cur := e.o.Replicas
	switch {
	case want < cur:
		window := e.p.downWindow()
		if window <= 0 {
			return want
		}
		_, highest, _ := extremes(s.Wants, e.now, window)
		if e.now.Sub(s.Since) < window {
			highest = cur // the window is not covered yet, as after a restart
		}
		if held := min(cur, max(want, highest)); held != want {
			return e.step(RuleStabilization, want, held, Facts{Window: window, Down: true})
		}
	case want > cur && e.p.Up.Window > 0:
		lowest, _, _ := extremes(s.Wants, e.now, e.p.Up.Window)
		if e.now.Sub(s.Since) < e.p.Up.Window {
			lowest = cur
		}
		if held := max(cur, min(want, lowest)); held != want {
			return e.step(RuleStabilization, want, held, Facts{Window: e.p.Up.Window})
		}
	}
	return want
}

// bound applies the budget and the policy's bounds, which have the last word.
func (e *engine) bound(want int32) int32 {
	limit := e.p.ceiling()
	if limit < e.p.Max && want > limit {
		want = e.step(RuleBudget, want, limit, Facts{Limit: e.p.MaxGPUs})
	}
	if bounded := min(max(want, e.p.Min), e.p.Max); bounded != want {
		return e.step(RuleBounds, want, bounded, Facts{Limit: bounded, Down: bounded > want})
	}
	return want
}

// lastWord finds the rule that made the decision: the last step that moved the
// number, else the last step.
func lastWord(d *Decision) Rule {
	for _, s := range slices.Backward(d.Steps) {
		if s.Before != s.After {
			return s.Rule
		}
	}
	if n := len(d.Steps); n > 0 {
		return d.Steps[n-1].Rule
	}
	return RuleDemand
}

// victims names the n pods that are missed least: those that no node takes,
// then those that are starting (the youngest first), then the idlest.
func victims(o *Observation, n int) []string {
	rank := map[Phase]int{Unschedulable: 0, Starting: 1, Serving: 2}
	pods := make([]*Replica, 0, len(o.Pods))
	for i := range o.Pods {
		if o.Pods[i].Phase != Terminating {
			pods = append(pods, &o.Pods[i])
		}
	}
	slices.SortStableFunc(pods, func(a, b *Replica) int {
		if d := rank[a.Phase] - rank[b.Phase]; d != 0 {
			return d
		}
		if ra, rb := a.reading(0), b.reading(0); a.Phase == Serving && ra.OK && rb.OK && ra.Value != rb.Value {
			if ra.Value < rb.Value {
				return -1
			}
			return 1
		}
		return b.Since.Compare(a.Since)
	})
	names := make([]string, 0, min(n, len(pods)))
	for _, p := range pods[:min(n, len(pods))] {
		names = append(names, p.Name)
	}
	return names
}

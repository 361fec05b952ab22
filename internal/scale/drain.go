// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/drain"
	"github.com/gpupilot/gpupilot/internal/scale/facts"
)

// isDraining reports whether a replica leaves.
func (o *Observation) isDraining() bool {
	return slices.ContainsFunc(o.Pods, func(r Replica) bool { return r.Phase == Leaving })
}

// decideDrain decides as if replicas that leave were removed already, and then keeps them
// until their requests are finished. They are taken back before others are created: at
// once, whatever the stabilisation window and the rates upward are.
func decideDrain(p *Policy, o *Observation, s State, now time.Time) (Decision, State) {
	w, at := drainable(p, o, now)
	plan := drain.Begin(&w, s.Drain, now)
	rest := *o
	rest.Replicas, rest.Pods = plan.Counted(), make([]Replica, 0, len(o.Pods))
	live := int32(0)
	for i := range o.Pods {
		r := o.Pods[i]
		if at[i] >= 0 {
			switch plan.Role(at[i]) {
			case drain.Leaving, drain.Gone:
				continue
			case drain.Returning:
				r.Phase, r.Since = Starting, now
			case drain.Counted:
			}
			live++
		}
		rest.Pods = append(rest.Pods, r)
	}
	d, s, asked := decide(*p, rest, s, now)
	serve := d.Replicas
	if p.InForce.Up.isSpec() && serve < asked {
		serve = max(serve, min(asked, o.Replicas, p.ceiling()))
	}
	surplus := int(live - rest.Replicas)
	if d.Rollout.InProgress || surplus < 0 {
		surplus = 0
	}
	result, next := plan.Finish(serve, d.Victims, surplus)
	s.Drain = next
	return d.drain(p, o, &result, serve), s
}

// drainable returns the workload's pods that are not terminating, and the place of each of
// its replicas among them; -1: none.
func drainable(p *Policy, o *Observation, now time.Time) (drain.Workload, []int) {
	w := drain.Workload{
		Replicas: o.Replicas, Max: p.Drain, Ordered: o.Ordered, Budgets: o.Disruptions, Unknown: o.DisruptionsLost,
		Pods: make([]drain.Pod, 0, len(o.Pods)),
	}
	at := make([]int, len(o.Pods))
	for i := range o.Pods {
		r := &o.Pods[i]
		if at[i] = len(w.Pods); r.Phase == Terminating {
			at[i] = -1
			continue
		}
		w.Pods = append(w.Pods, drain.Pod{
			Name: r.Name, Serving: r.Phase == Serving || r.Phase == Starting && r.Out, Gated: r.Gated, Leaving: r.Phase == Leaving, Since: r.Since, Out: r.Out,
			Idle: r.InFlight.fresh(now, p.maxAge()) && r.InFlight.Value <= 0, IdleAt: r.InFlight.At,
			Ordinal: r.Ordinal, Disrupts: r.Disrupts,
		})
	}
	return w, at
}

// drain changes a decision about the replicas that are to serve into one about all.
func (d Decision) drain(p *Policy, o *Observation, r *drain.Result, serve int32) Decision {
	step := func(rule Rule, f facts.Facts) {
		d.Steps = append(d.Steps, Step{Rule: rule, Before: serve, After: r.Replicas, Facts: f})
		if r.Replicas != serve {
			d.Rule = rule
		}
	}
	if r.Back > 0 {
		d.Steps = append(d.Steps, Step{Rule: RuleDrain, Before: d.Current, After: serve, Facts: facts.Back(r.Back)})
		d.Rule = RuleDrain
	}
	if r.Held > 0 && (r.HeldBy != "" || r.Unknown) {
		step(RuleDisruption, facts.Disruption(r.HeldBy))
	}
	if r.Leaving > 0 {
		step(RuleDrain, facts.Leaving{N: r.Leaving, Left: r.Left})
	}
	if r.Ungated != "" {
		d.Steps = append(d.Steps, Step{Rule: RuleDrain, Before: r.Replicas, After: r.Replicas, Facts: facts.Ungated(r.Ungated)})
	}
	d.Current, d.Replicas, d.Leave, d.Leaving, d.Victims = o.Replicas, r.Replicas, r.Leave, r.Leaving, nil
	if d.Replicas < d.Current {
		d.Victims = r.Remove
	}
	return d
}

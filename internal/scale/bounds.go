// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"

	"github.com/gpupilot/gpupilot/internal/scale/facts"
)

// Origin says what sets a bound: Rule is RuleOverride or RuleSchedule, and Text is for
// sentences, such as "override until 18:00 (incident 4711)". The zero Origin is the spec.
type Origin struct {
	Rule Rule
	Text string
}

func (o Origin) isSpec() bool { return o.Rule == "" }

// InForce says where a policy's Min and Max come from, and in which directions nothing
// changes. Package policy sets it for a time. The zero InForce is a policy with the bounds
// of its spec.
type InForce struct {
	Min, Max Origin
	// Up and Down, if set, allow no change in that direction.
	Up, Down Origin
	// OverBudget is the number of replicas that the budget does not take away, if Min is
	// not the spec's. The spec's minReplicas takes precedence over its budget, and what
	// raises it for a time does not.
	OverBudget int32
}

// ceiling is the highest number of replicas that bounds and budget allow.
func (p *Policy) ceiling() int32 { return min(p.Max, p.budgeted()) }

// budgeted is the highest number of replicas that the budget allows.
func (p *Policy) budgeted() int32 {
	if p.MaxGPUs <= 0 || p.GPUsPerReplica <= 0 {
		return math.MaxInt32
	}
	least := p.Min
	if !p.InForce.Min.isSpec() {
		least = min(least, p.InForce.OverBudget)
	}
	return max(p.MaxGPUs/p.GPUsPerReplica, least)
}

// bound applies the budget and the bounds in force, which come last.
func (e *engine) bound(want int32, s *State) int32 {
	in := &e.p.InForce
	if e.p.ceiling() < e.p.Max {
		want = e.apply(want, e.budget(want))
	}
	switch {
	case want < e.p.Min:
		want = e.apply(want, e.boundBy(in.Min, e.p.Min, facts.Min(e.p.Min)))
	case want > e.p.Max:
		want = e.apply(want, e.boundBy(in.Max, e.p.Max, facts.Max(e.p.Max)))
	}
	want = e.apply(want, e.budget(want)) // over what raised the minimum for a time
	if e.isSetToZero(s) {
		return e.apply(want, ruling{RuleSetToZero, 0, facts.SetToZero{}})
	}
	return e.apply(want, e.freeze(want))
}

// budget is the ruling of the budget.
func (e *engine) budget(want int32) ruling {
	if limit := e.p.ceiling(); want > limit {
		return ruling{RuleBudget, limit, facts.Budget(e.p.MaxGPUs)}
	}
	return ruling{}
}

// boundBy is the ruling of a bound that o sets; f is that of the spec.
func (e *engine) boundBy(o Origin, bound int32, f facts.Facts) ruling {
	if !o.isSpec() {
		return ruling{o.Rule, bound, facts.Forced(o.Text)}
	}
	return ruling{RuleBounds, bound, f}
}

// freeze keeps the number in a direction in which nothing may change. The budget applies
// all the same.
func (e *engine) freeze(want int32) ruling {
	cur, o := e.o.Replicas, e.p.InForce.Up
	if want < cur {
		cur, o = max(want, min(cur, e.p.budgeted())), e.p.InForce.Down
	}
	if o.isSpec() || want == cur {
		return ruling{}
	}
	return ruling{o.Rule, cur, facts.Forced(o.Text)}
}

// isSetToZero reports whether others have set the replicas to 0. They stay 0, as with the
// HorizontalPodAutoscaler.
func (e *engine) isSetToZero(s *State) bool {
	return e.p.KeepZero && e.o.Replicas == 0 && e.p.Min > 0 && !s.Zeroed
}

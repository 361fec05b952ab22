// SPDX-License-Identifier: Apache-2.0

package aspect

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/facts"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

var t0 = time.Date(2026, 11, 24, 14, 0, 0, 0, time.UTC)

// override holds six replicas from t0 on.
func override(t *testing.T, lasts time.Duration) policy.Compiled {
	t.Helper()
	six := int32(6)
	o, err := policy.CompileOverride(&v1alpha1.Override{Replicas: &six, Until: metav1.Time{Time: t0.Add(lasts)}, Reason: "incident 4711"})
	if err != nil {
		t.Fatal(err)
	}
	return policy.Compiled{Policy: scale.Policy{Min: 1, Max: 8}, Override: o}
}

// leads is a fleet of a replica that leads, or does not.
func leads(is bool) *Fleet { return &Fleet{Deps: Deps{Leading: func() bool { return is }}} }

// life is a GPUAutoscaler whose status is what controllers wrote.
type life struct {
	t      *testing.T
	keeper bounding
	object v1alpha1.GPUAutoscaler
	held   bool
}

// pass is one pass of the controller, and the write of the status.
func (l *life) pass(c policy.Compiled, now time.Time) (reasons []string) {
	l.t.Helper()
	p := &Pass{At: now, Object: &l.object, Plan: &c, Policy: c.Policy, Decision: &scale.Decision{}, Signals: metav1.Condition{Status: metav1.ConditionTrue}}
	l.keeper.fleet = leads(true)
	l.keeper.Prepare(p)
	l.held = p.Policy.Min == 6
	part := l.keeper.Report(p)
	for _, n := range part.Notices {
		reasons = append(reasons, n.Reason)
	}
	for _, cond := range part.Conditions {
		meta.SetStatusCondition(&l.object.Status.Conditions, cond)
	}
	st := v1alpha1.GPUAutoscalerStatus{}
	part.Status(&st, &l.object.Status)
	l.object.Status.Override = st.Override
	return reasons
}

// An override is neither lost nor extended by restarts and jumps of the clock, and its
// start and its end are recorded once.
func TestOverrideOverTime(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		l := &life{t: t}
		f := func(c policy.Compiled, at time.Duration, held bool, want ...string) {
			t.Helper()
			if restarts {
				l.keeper = bounding{}
			}
			got := l.pass(c, t0.Add(at))
			if l.held != held || !slices.Equal(got, want) {
				t.Errorf("restarts %v, at %v: held %v, events %q, want %v, %q", restarts, at, l.held, got, held, want)
			}
		}
		four := override(t, 4*time.Hour)
		none := policy.Compiled{Policy: four.Policy}
		f(none, -time.Second, false)
		f(four, 0, true, "Overridden")
		f(four, time.Second, true)
		f(four, 4*time.Hour-time.Second, true)
		f(four, 4*time.Hour, false, "OverrideEnded")
		f(four, 4*time.Hour+time.Second, false)
		f(four, 3*time.Hour, true, "Overridden") // the clock went back
		f(none, 3*time.Hour, false, "NoOverride")
		f(none, 3*time.Hour+1, false)
		long := override(t, policy.LongestOverride+time.Second)
		f(long, 0, false, "OverrideTooLong")
		f(long, 24*time.Hour, false) // it never begins by itself
		f(long, policy.LongestOverride, false)
		f(four, time.Hour, true, "Overridden")
	}
}

func TestLine(t *testing.T) {
	c := override(t, 72*time.Hour)
	f := func(at time.Duration, want string) {
		t.Helper()
		var k bounding
		p := c.Policy
		if got := k.apply(&c, &p, nil, t0.Add(at)).line(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	f(0, "6 replicas until 2026-11-27 14:00 UTC, 3 days left: incident 4711")
	f(25*time.Hour, "6 replicas until 2026-11-27 14:00 UTC, 47 h left: incident 4711")
	f(70*time.Hour+30*time.Second, "6 replicas until 2026-11-27 14:00 UTC, 120 min left: incident 4711")
	f(72*time.Hour-time.Second, "6 replicas until 2026-11-27 14:00 UTC, 1 min left: incident 4711")
	f(72*time.Hour, "")
}

func TestScalingConditions(t *testing.T) {
	readable := metav1.Condition{Type: v1alpha1.ConditionSignals, Status: metav1.ConditionTrue, Reason: "Readable"}
	silent := metav1.Condition{Type: v1alpha1.ConditionSignals, Status: metav1.ConditionFalse, Reason: "NoFreshData", Message: "none"}
	f := func(signals metav1.Condition, steps []scale.Step, want ...string) {
		t.Helper()
		got := []string{}
		for _, c := range (&bounding{fleet: leads(true), said: &boundsReport{}}).Report(&Pass{Object: &v1alpha1.GPUAutoscaler{}, Decision: &scale.Decision{Steps: steps}, Signals: signals}).Conditions {
			got = append(got, strings.TrimSuffix(c.Type+" "+string(c.Status)+" "+c.Reason+": "+c.Message, ": "))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	const active = "ScalingActive True ValidMetricFound: signals set the replicas"
	step := func(r scale.Rule, f facts.Facts) []scale.Step { return []scale.Step{{Rule: r, Facts: f}} }
	f(readable, nil, active, "ScalingLimited False DesiredWithinRange: no limit applies: the signals, or minReplicas, set the replicas")
	f(silent, step(scale.RuleBounds, facts.Max(8)), "ScalingActive False NoFreshData: none", "ScalingLimited True TooManyReplicas: maxReplicas is 8, and the load needs more: raise it if there are GPUs for it")
	f(readable, step(scale.RuleBounds, facts.Min(1)), active, "ScalingLimited False DesiredWithinRange: no limit applies: the signals, or minReplicas, set the replicas")
	f(readable, step(scale.RuleBudget, facts.Budget(8)), active, "ScalingLimited True BudgetLimit: the budget is 8 GPUs, and the load needs more: raise spec.budget.maxGPUs")
	f(readable, step(scale.RuleRate, facts.Rate{}), active, "ScalingLimited True ScaleUpLimit: the rate of scaling up is limited")
	f(readable, step(scale.RuleDescent, facts.Descent(0)), active, "ScalingLimited True ScaleDownLimit: the rate of scaling down is limited")
	f(readable, step(scale.RuleDisabled, facts.Disabled(true)), active, "ScalingLimited True ScaleDownLimit: behavior does not allow scaling down")
	f(readable, step(scale.RuleOverride, facts.Forced("override until 18:00")), active, "ScalingLimited True Override: override until 18:00")
	f(silent, step(scale.RuleSetToZero, facts.SetToZero{}),
		"ScalingActive False ScalingDisabled: the replicas were set to 0, and not by this controller: they stay 0. To go on, set 1 or more, such as with kubectl scale --replicas=1",
		"ScalingLimited False DesiredWithinRange: no limit applies: the signals, or minReplicas, set the replicas")
}

// Replicas that others set to 0 are an Event once, also over a change of leaders.
func TestZeroIsRecordedOnce(t *testing.T) {
	l := &life{t: t}
	d := &scale.Decision{Steps: []scale.Step{{Rule: scale.RuleSetToZero}}}
	c := policy.Compiled{}
	say := func(leading bool) (n int) {
		p := &Pass{At: t0, Object: &l.object, Plan: &c, Policy: c.Policy, Decision: d}
		l.keeper.fleet = leads(leading)
		l.keeper.Prepare(p)
		part := l.keeper.Report(p)
		n, l.object.Status.Conditions = len(part.Notices), part.Conditions
		return n
	}
	if a, b := say(true), say(true); a != 1 || b != 0 {
		t.Errorf("%d events, then %d", a, b)
	}
	if a, b := say(false), say(true); a != 0 || b != 0 {
		t.Errorf("after a change of leaders: %d events, then %d", a, b)
	}
}

// A limit that keeps fewer replicas than the load needs says how many it needs.
func TestAtLimit(t *testing.T) {
	f := func(want string, steps ...scale.Step) {
		t.Helper()
		if got := atLimit(&scale.Decision{Steps: steps}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	demand := scale.Step{Rule: scale.RuleDemand, Before: 5, After: 9}
	f("", demand)
	f("", demand, scale.Step{Rule: scale.RuleBounds, Before: 1, After: 2, Facts: facts.Min(2)})
	f("", demand, scale.Step{Rule: scale.RuleOverride, Before: 9, After: 4, Facts: facts.Forced("held")})
	f("at its maximum, needs 9", demand, scale.Step{Rule: scale.RuleBounds, Before: 9, After: 5, Facts: facts.Max(5)})
	f("at the maximum of its schedule, needs 9", demand, scale.Step{Rule: scale.RuleSchedule, Before: 9, After: 5, Facts: facts.Forced("night")})
	f("at its budget of 16 GPUs, needs 9 replicas", demand, scale.Step{Rule: scale.RuleBudget, Before: 9, After: 8, Facts: facts.Budget(16)}, scale.Step{Rule: scale.RuleBounds, Before: 8, After: 5, Facts: facts.Max(5)})
}

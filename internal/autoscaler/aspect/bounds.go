// SPDX-License-Identifier: Apache-2.0

package aspect

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/facts"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/words"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// The reasons of conditions and Events about bounds, of which some are the HorizontalPodAutoscaler's. They are public.
const (
	reasonOverridden = "Overridden"
	reasonEnded      = "OverrideEnded"
	reasonTooLong    = "OverrideTooLong"
	reasonActive     = "ValidMetricFound"
	reasonInRange    = "DesiredWithinRange"
	reasonTooMany    = "TooManyReplicas"
	reasonUpLimit    = "ScaleUpLimit"
	reasonDownLimit  = "ScaleDownLimit"
	reasonBudget     = "BudgetLimit"
	reasonSchedule   = "Schedule"
)

// bounding sets the bounds in force: of the spec, its schedules and its override.
type bounding struct {
	None
	fleet    *Fleet
	said     *boundsReport // about the last decision
	since    v1alpha1.OverrideStatus
	recorded string // key of the last Event; empty: not compared with the stored status yet
	zero     bool   // the Event about replicas that others set to 0 was recorded
}

// boundsReport says what bounds a workload at one moment.
type boundsReport struct {
	at       time.Time
	override policy.Override
	state    policy.OverrideState
	since    time.Time              // when the override was first read
	bounds   *v1alpha1.BoundsStatus // nil: neither schedules nor an override
}

func (k *bounding) Prepare(p *Pass) {
	k.said = k.apply(p.Plan, &p.Policy, p.Object.Status.Override, p.At)
}

func (k *bounding) Report(p *Pass) Part {
	said, out := k.said, Part{Owns: []string{v1alpha1.ConditionScalingActive, v1alpha1.ConditionScalingLimited, v1alpha1.ConditionOverridden}}
	if p.Decision == nil {
		out.Status = func(st, last *v1alpha1.GPUAutoscalerStatus) { st.Override = last.Override }
		return out
	}
	low, high := p.Policy.Min, p.Policy.Max
	out.Conditions = append([]metav1.Condition{active(p.Decision, p.Signals), limited(p.Decision)}, said.overridden(p.Object.Status.Conditions)...)
	out.Notices = k.notices(p.Decision, p.Object)
	out.Status = func(st, _ *v1alpha1.GPUAutoscalerStatus) {
		if st.Override, st.Bounds = said.status(), said.bounds; said.state == policy.Overridden {
			st.Mode = v1alpha1.ModeHeld
		}
	}
	out.View = func(v *view.Workload) {
		v.Min, v.Max, v.Override, v.AtLimit = low, high, said.line(), atLimit(p.Decision)
		if said.bounds != nil {
			v.Schedules = said.bounds.Schedules
		}
	}
	return out
}

// apply sets the bounds in force at now in p, which has those of the spec. stored is the
// status of the object, which the previous leader may have written.
func (k *bounding) apply(c *policy.Compiled, p *scale.Policy, stored *v1alpha1.OverrideStatus, now time.Time) *boundsReport {
	until := c.Override.Until
	if !k.since.Until.Time.Equal(until) {
		k.since = v1alpha1.OverrideStatus{Since: metav1.Time{Time: now}, Until: metav1.Time{Time: until}}
		if stored != nil && stored.Until.Time.Equal(until) && stored.Since.Time.Before(now) {
			k.since.Since = stored.Since
		}
	}
	since := k.since.Since.Time
	r := &boundsReport{at: now, override: c.Override, since: since}
	names := c.Apply(p, now, since)
	if r.state = c.Override.StateAt(now, since); len(c.Schedules) > 0 || r.state != policy.NoOverride {
		r.bounds = &v1alpha1.BoundsStatus{MinReplicas: p.Min, MaxReplicas: p.Max, Schedules: names}
	}
	return r
}

// status returns the part of the status about the override; nil: the spec has none.
func (r *boundsReport) status() *v1alpha1.OverrideStatus {
	if r.state == policy.NoOverride {
		return nil
	}
	return &v1alpha1.OverrideStatus{Since: metav1.Time{Time: r.since.Truncate(time.Second)}, Until: metav1.Time{Time: r.override.Until}}
}

// line says what overrides the signals, for the page; empty: nothing does.
func (r *boundsReport) line() string {
	if r.state != policy.Overridden {
		return ""
	}
	o := &r.override
	return fmt.Sprintf("%s until %s, %s left: %s", o.What, policy.Clock(o.Until), left(o.Until.Sub(r.at)), o.Reason)
}

// left rounds up the time that is left, so that a condition with it changes once a minute
// at most.
func left(d time.Duration) string {
	switch up := func(unit time.Duration) int { return int((d + unit - 1) / unit) }; {
	case d > 48*time.Hour:
		return fmt.Sprintf("%d days", up(24*time.Hour))
	case d > 2*time.Hour:
		return fmt.Sprintf("%d h", up(time.Hour))
	case d > time.Minute:
		return fmt.Sprintf("%d min", up(time.Minute))
	}
	return "1 min"
}

// overridden returns ConditionOverridden if there is an override, or has been one.
func (r *boundsReport) overridden(base []metav1.Condition) []metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionOverridden, Status: metav1.ConditionFalse}
	switch o := &r.override; r.state {
	case policy.Overridden:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonOverridden, r.line()
	case policy.OverrideEnded:
		c.Reason, c.Message = reasonEnded, fmt.Sprintf("the %s has ended and has no effect; gpupilot resume removes it", o)
	case policy.OverrideTooLong:
		c.Reason, c.Message = reasonTooLong, fmt.Sprintf("the %s has no effect: it may end at most 30 days after %s, when it was first read", o, policy.Clock(r.since))
	default:
		if meta.FindStatusCondition(base, c.Type) == nil {
			return nil
		}
		c.Reason, c.Message = v1alpha1.ReasonNoOverride, "the spec has no override"
	}
	return []metav1.Condition{c}
}

// notices returns the Events about the start and the end of an override, and about
// replicas that others set to 0: each once. a has the status that the previous leader
// wrote.
func (k *bounding) notices(d *scale.Decision, a *v1alpha1.GPUAutoscaler) (out []Notice) {
	if !k.fleet.Leading() {
		k.recorded, k.zero = "", false
		return nil
	}
	if zero := active(d, metav1.Condition{}); zero.Reason != v1alpha1.ReasonScalingDisabled {
		k.zero = false
	} else if !k.zero {
		k.zero = true
		if c := meta.FindStatusCondition(a.Status.Conditions, zero.Type); c == nil || c.Reason != v1alpha1.ReasonScalingDisabled {
			out = append(out, Notice{corev1.EventTypeNormal, v1alpha1.ReasonScalingDisabled, "Scale", zero.Message})
		}
	}
	n := Notice{Kind: corev1.EventTypeNormal, Reason: v1alpha1.ReasonNoOverride, Action: "Scale", Note: "the override was removed"}
	if all := k.said.overridden(nil); len(all) > 0 {
		n.Reason, n.Note = all[0].Reason, all[0].Message
	}
	if n.Reason == reasonTooLong {
		n.Kind = corev1.EventTypeWarning
	}
	last, now := cmp.Or(k.recorded, storedKey(a)), keyOf(n.Reason, k.said.override.Until)
	if k.recorded = now; now != last {
		out = append(out, n)
	}
	return out
}

// keyOf identifies what was recorded about an override.
func keyOf(reason string, until time.Time) string { return reason + " " + policy.Clock(until) }

// storedKey is the key of what the previous leader recorded.
func storedKey(a *v1alpha1.GPUAutoscaler) string {
	if c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionOverridden); c != nil && a.Status.Override != nil {
		return keyOf(c.Reason, a.Status.Override.Until.Time)
	}
	return keyOf(v1alpha1.ReasonNoOverride, time.Time{})
}

// active returns ConditionScalingActive.
func active(d *scale.Decision, signals metav1.Condition) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionScalingActive, Status: signals.Status, Reason: signals.Reason, Message: signals.Message}
	switch {
	case slices.ContainsFunc(d.Steps, func(s scale.Step) bool { return s.Rule == scale.RuleSetToZero }):
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonScalingDisabled
		c.Message = "the replicas were set to 0, and not by this controller: they stay 0. To go on, set 1 or more, such as with kubectl scale --replicas=1"
	case c.Status == metav1.ConditionTrue:
		c.Reason, c.Message = reasonActive, "signals set the replicas"
	}
	return c
}

// limited returns ConditionScalingLimited: whether a limit changed the number that the
// signals ask for. The last limit counts. The message has no numbers of the load, because
// each change of it is written.
func limited(d *scale.Decision) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionScalingLimited, Status: metav1.ConditionFalse, Reason: reasonInRange,
		Message: "no limit applies: the signals, or minReplicas, set the replicas",
	}
	for i := range d.Steps {
		if reason, message := limitOf(&d.Steps[i]); reason != "" {
			c.Status, c.Reason, c.Message = metav1.ConditionTrue, reason, message
		}
	}
	return c
}

// atLimit says which limit keeps fewer replicas than the load needs, and how many that is; empty: none does.
func atLimit(d *scale.Decision) string {
	for i := range d.Steps {
		s := &d.Steps[i]
		if s.After >= s.Before {
			continue
		}
		switch f := s.Facts.(type) {
		case facts.Max:
			return fmt.Sprintf("at its maximum, needs %d", s.Before)
		case facts.Budget:
			return fmt.Sprintf("at its budget of %d GPUs, needs %d replicas", f, s.Before)
		case facts.Forced:
			if s.Rule == scale.RuleSchedule {
				return fmt.Sprintf("at the maximum of its schedule, needs %d", s.Before)
			}
		}
	}
	return ""
}

// limitOf returns the reason and the message of a step that limits the number; none for
// other steps. minReplicas is no limit of a load.
func limitOf(s *scale.Step) (reason, message string) {
	reasons := map[bool]string{false: reasonUpLimit, true: reasonDownLimit}
	switch f := s.Facts.(type) {
	case facts.Forced:
		if s.Rule == scale.RuleOverride {
			return v1alpha1.ReasonLimitedByOverride, string(f)
		}
		return reasonSchedule, string(f)
	case facts.Idle:
		return v1alpha1.ReasonLimitedByIdle, "nobody uses the workload (spec.idle)"
	case facts.Budget:
		return reasonBudget, fmt.Sprintf("the budget is %d GPUs, and the load needs more: raise spec.budget.maxGPUs", f)
	case facts.Disabled:
		return reasons[bool(f)], "behavior does not allow scaling " + words.UpOrDown(bool(f))
	case facts.Rate:
		return reasons[f.Down], "the rate of scaling " + words.UpOrDown(f.Down) + " is limited"
	case facts.Descent, facts.FirstDescent:
		return reasonDownLimit, "the rate of scaling down is limited"
	case facts.Max:
		return reasonTooMany, fmt.Sprintf("maxReplicas is %d, and the load needs more: raise it if there are GPUs for it", f)
	}
	return "", ""
}

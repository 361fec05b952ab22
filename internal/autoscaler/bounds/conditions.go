// SPDX-License-Identifier: Apache-2.0

package bounds

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// The HorizontalPodAutoscaler's reasons, and ours beside them.
const (
	reasonActive    = "ValidMetricFound"
	reasonDisabled  = "ScalingDisabled"
	reasonInRange   = "DesiredWithinRange"
	reasonTooMany   = "TooManyReplicas"
	reasonUpLimit   = "ScaleUpLimit"
	reasonDownLimit = "ScaleDownLimit"
	reasonBudget    = "BudgetLimit"
	reasonOverride  = "Override"
	reasonSchedule  = "Schedule"
	reasonIdle      = "Idle"
	reasonUndecided = "Undecided"
)

// Names are the types of the conditions that Conditions returns.
var Names = []string{v1alpha1.ConditionScalingActive, v1alpha1.ConditionScalingLimited, v1alpha1.ConditionOverridden}

// Conditions returns the conditions about what the replicas follow and what limits them.
// signals is ConditionSignals.
func Conditions(r *Report, d *scale.Decision, signals metav1.Condition, base []metav1.Condition) []metav1.Condition {
	return append([]metav1.Condition{active(d, signals), limited(d)}, r.overridden(base)...)
}

// AllReadable is the message of ConditionSignals while every signal has a value of its own.
const AllReadable = "every signal can be read"

// IsNotable reports whether a condition of a GPUAutoscaler is not the usual one, for a
// list of what is to be looked at. Most conditions are usually True.
func IsNotable(c *metav1.Condition) bool {
	switch c.Type {
	case v1alpha1.ConditionOverridden:
		return c.Reason != reasonNone
	case v1alpha1.ConditionDraining:
		return c.Status == metav1.ConditionTrue || c.Reason != v1alpha1.ReasonNotDraining
	case v1alpha1.ConditionRollout:
		return c.Status == metav1.ConditionTrue
	case v1alpha1.ConditionPaired:
		return c.Status != metav1.ConditionTrue
	case v1alpha1.ConditionIdle:
		return c.Status != metav1.ConditionFalse
	case v1alpha1.ConditionScalingLimited:
		return c.Status == metav1.ConditionTrue && c.Reason != reasonOverride && c.Reason != reasonIdle // their own conditions say it
	case v1alpha1.ConditionScalingActive:
		return c.Reason == reasonDisabled // ConditionSignals says the rest
	case v1alpha1.ConditionSignals: // one signal may have no value, or be 0/0, while another one decides
		return c.Status != metav1.ConditionTrue || c.Message != AllReadable
	}
	return c.Status != metav1.ConditionTrue
}

// active returns ConditionScalingActive.
func active(d *scale.Decision, signals metav1.Condition) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionScalingActive, Status: signals.Status, Reason: signals.Reason, Message: signals.Message}
	switch {
	case has(d, scale.RuleSetToZero) != nil:
		c.Status, c.Reason = metav1.ConditionFalse, reasonDisabled
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
		Message: "the replicas are those that the signals ask for, or minReplicas",
	}
	for i := range d.Steps {
		if reason, message := limitOf(&d.Steps[i]); reason != "" {
			c.Status, c.Reason, c.Message = metav1.ConditionTrue, reason, message
		}
	}
	return c
}

// limitOf returns the reason and the message of a step that limits the number; none for
// other steps. minReplicas is no limit of a load.
func limitOf(s *scale.Step) (reason, message string) {
	reason, to := reasonUpLimit, "up"
	if s.Facts.Down {
		reason, to = reasonDownLimit, "down"
	}
	switch s.Rule {
	case scale.RuleOverride:
		return reasonOverride, s.Facts.By
	case scale.RuleSchedule:
		return reasonSchedule, s.Facts.By
	case scale.RuleIdle:
		return reasonIdle, "nobody uses the workload (spec.idle)"
	case scale.RuleBudget:
		return reasonBudget, fmt.Sprintf("the budget is %d GPUs", s.Facts.Limit)
	case scale.RuleDisabled:
		return reason, "behavior does not allow scaling " + to
	case scale.RuleRate, scale.RuleDescent:
		return reason, "the rate of scaling " + to + " is limited"
	case scale.RuleBounds:
		if !s.Facts.Down {
			return reasonTooMany, fmt.Sprintf("maxReplicas is %d", s.Facts.Limit)
		}
	}
	return "", ""
}

// has returns the last step of a rule; nil: the decision has none.
func has(d *scale.Decision, rule scale.Rule) (last *scale.Step) {
	for i := range d.Steps {
		if d.Steps[i].Rule == rule {
			last = &d.Steps[i]
		}
	}
	return last
}

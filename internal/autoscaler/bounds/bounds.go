// SPDX-License-Identifier: Apache-2.0

// Package bounds keeps what bounds a workload's replicas for a time, and says so: in
// conditions, in Events, in the status and on the page.
package bounds

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// The reasons of conditions and Events. They are public.
const (
	reasonOverridden = "Overridden"
	reasonEnded      = "OverrideEnded"
	reasonTooLong    = "OverrideTooLong"
	reasonNone       = "NoOverride"
)

// Keeper follows one workload's override. The zero Keeper is ready for use.
type Keeper struct {
	since    v1alpha1.OverrideStatus
	recorded string // key of the last Event; empty: not compared with the stored status yet
	zero     bool   // the Event about replicas that others set to 0 was recorded
}

// Report says what bounds a workload at one moment.
type Report struct {
	At       time.Time
	Override policy.Override
	State    policy.OverrideState
	Since    time.Time // when the override was first read

	schedules bool // the spec has schedules
	bounds    v1alpha1.BoundsStatus
}

// Apply sets the bounds in force at now in p, which has those of the spec. stored is the
// status of the object, which the previous leader may have written.
func (k *Keeper) Apply(c *policy.Compiled, p *scale.Policy, stored *v1alpha1.OverrideStatus, now time.Time) *Report {
	until := c.Override.Until
	if !k.since.Until.Time.Equal(until) {
		k.since = v1alpha1.OverrideStatus{Since: metav1.Time{Time: now}, Until: metav1.Time{Time: until}}
		if stored != nil && stored.Until.Time.Equal(until) && stored.Since.Time.Before(now) {
			k.since.Since = stored.Since
		}
	}
	since := k.since.Since.Time
	active := c.Apply(p, now, since)
	return &Report{
		At: now, Override: c.Override, State: c.Override.StateAt(now, since), Since: since,
		schedules: len(c.Schedules) > 0, bounds: v1alpha1.BoundsStatus{MinReplicas: p.Min, MaxReplicas: p.Max, Schedules: active},
	}
}

// Bounds returns the bounds in force; nil: the spec has neither schedules nor an override.
func (r *Report) Bounds() *v1alpha1.BoundsStatus {
	if !r.schedules && r.State == policy.NoOverride {
		return nil
	}
	return &r.bounds
}

// Range returns the bounds in force.
func (r *Report) Range() (low, high int32) { return r.bounds.MinReplicas, r.bounds.MaxReplicas }

// Schedules returns the names of the active schedules.
func (r *Report) Schedules() []string { return r.bounds.Schedules }

// Status returns the part of the status about the override; nil: the spec has none.
func (r *Report) Status() *v1alpha1.OverrideStatus {
	if r.State == policy.NoOverride {
		return nil
	}
	return &v1alpha1.OverrideStatus{Since: metav1.Time{Time: r.Since.Truncate(time.Second)}, Until: metav1.Time{Time: r.Override.Until}}
}

// Line says what overrides the signals, for the page; empty: nothing does.
func (r *Report) Line() string {
	if r.State != policy.Overridden {
		return ""
	}
	o := &r.Override
	return fmt.Sprintf("%s until %s, %s left: %s", o.What, policy.Clock(o.Until), left(o.Until.Sub(r.At)), o.Reason)
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
func (r *Report) overridden(base []metav1.Condition) []metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionOverridden, Status: metav1.ConditionFalse}
	switch o := &r.Override; r.State {
	case policy.Overridden:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonOverridden, r.Line()
	case policy.OverrideEnded:
		c.Reason, c.Message = reasonEnded, fmt.Sprintf("the %s has ended and has no effect; gpupilot resume removes it", o)
	case policy.OverrideTooLong:
		c.Reason, c.Message = reasonTooLong, fmt.Sprintf("the %s has no effect: it may end at most 30 days after %s, when it was first read", o, policy.Clock(r.Since))
	default:
		if meta.FindStatusCondition(base, c.Type) == nil {
			return nil
		}
		c.Reason, c.Message = reasonNone, "the spec has no override"
	}
	return []metav1.Condition{c}
}

// Notice is an Event that is due.
type Notice struct{ Kind, Reason, Action, Note string }

const scales = "Scale" // the action of Events

// Notices returns the Events about the start and the end of an override, and about
// replicas that others set to 0: each once. a has the status that the previous leader
// wrote.
func (k *Keeper) Notices(r *Report, d *scale.Decision, a *v1alpha1.GPUAutoscaler, leading bool) (out []Notice) {
	if !leading {
		k.recorded, k.zero = "", false
		return nil
	}
	if zero := active(d, metav1.Condition{}); zero.Reason != reasonDisabled {
		k.zero = false
	} else if !k.zero {
		k.zero = true
		if c := meta.FindStatusCondition(a.Status.Conditions, zero.Type); c == nil || c.Reason != reasonDisabled {
			out = append(out, Notice{corev1.EventTypeNormal, reasonDisabled, scales, zero.Message})
		}
	}
	n := Notice{Kind: corev1.EventTypeNormal, Reason: reasonNone, Action: scales, Note: "the override was removed"}
	if all := r.overridden(nil); len(all) > 0 {
		n.Reason, n.Note = all[0].Reason, all[0].Message
	}
	if n.Reason == reasonTooLong {
		n.Kind = corev1.EventTypeWarning
	}
	last, now := cmp.Or(k.recorded, storedKey(a)), keyOf(n.Reason, r.Override.Until)
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
	return keyOf(reasonNone, time.Time{})
}

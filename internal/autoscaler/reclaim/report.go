// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/bounds"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// maxPods bounds the names of the pods in a status.
const maxPods = 8

// Keeper follows whether one workload is in use. The zero Keeper is ready for use.
type Keeper struct {
	started bool                  // the stored status was read
	warned  bool                  // the Event about the present idleness was recorded
	asked   *v1alpha1.IdleRemoval // a scale-down that was decided and is not observed yet
	removed *v1alpha1.IdleRemoval // the last one
}

// Report says whether a workload is in use. nil: the spec has no idle.
type Report struct {
	decision  *scale.Decision
	policy    scale.Policy
	activated bool // a signal can end the idleness
	removed   *v1alpha1.IdleRemoval
}

// Observe returns the report about a decision by a policy. a has the status that the previous
// leader wrote.
func (k *Keeper) Observe(p *scale.Policy, d *scale.Decision, a *v1alpha1.GPUAutoscaler) *Report {
	if p.Idle.After <= 0 {
		*k = Keeper{}
		return nil
	}
	if !k.started {
		c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionIdle)
		k.started, k.warned = true, c != nil && (c.Reason == v1alpha1.ReasonIdleSoon || c.Reason == v1alpha1.ReasonIdleDown)
		if s := a.Status.Idle; s != nil {
			k.removed = s.Removed
		}
	}
	switch u := &d.Idle; {
	case u.Down && d.Replicas < d.Current:
		if k.asked == nil {
			k.asked = &v1alpha1.IdleRemoval{From: d.Current}
		}
		k.asked.To, k.asked.GPUs, k.asked.Time = d.Replicas, (k.asked.From-d.Replicas)*p.GPUsPerReplica, metav1.Time{Time: d.Time.Truncate(time.Second)}
		for _, name := range d.Victims {
			if len(k.asked.Pods) < maxPods && !slices.Contains(k.asked.Pods, name) {
				k.asked.Pods = append(k.asked.Pods, name)
			}
		}
	case k.asked != nil && u.Down && d.Current <= k.asked.To:
		k.removed, k.asked = k.asked, nil
	case !u.Down:
		k.asked = nil
	}
	r := &Report{decision: d, policy: *p, removed: k.removed}
	for i := range p.Signals {
		r.activated = r.activated || p.Signals[i].Activation != nil
	}
	return r
}

// Notices returns the Event that announces a scale-down, once for each.
func (k *Keeper) Notices(r *Report, leading bool) []bounds.Notice {
	switch {
	case r == nil:
		return nil
	case !leading:
		k.started = false // another leader records it
		return nil
	case !r.decision.Idle.Soon:
		k.warned = k.warned && r.decision.Idle.Down
		return nil
	case k.warned:
		return nil
	}
	k.warned = true
	return []bounds.Notice{{Kind: corev1.EventTypeWarning, Reason: v1alpha1.ReasonIdleSoon, Note: r.Condition().Message}}
}

// at is when replicas are removed, to the second.
func (r *Report) at() time.Time {
	return r.decision.Time.Add(r.decision.Idle.Left + time.Second - 1).Truncate(time.Second)
}

// Status returns the part of the status about a workload that nobody uses; nil: there is
// nothing to say.
func (r *Report) Status() *v1alpha1.IdleStatus {
	if r == nil || r.removed == nil && !r.decision.Idle.Soon {
		return nil
	}
	out := &v1alpha1.IdleStatus{Removed: r.removed}
	if r.decision.Idle.Soon {
		out.ScaleDownAt = &metav1.Time{Time: r.at()}
	}
	return out
}

// Condition returns ConditionIdle. Its message has no numbers of the load, because each
// change of it is written.
func (r *Report) Condition() metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionIdle, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonIdleInUse}
	p, u := r.policy.Idle, &r.decision.Idle
	switch {
	case u.Down:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonIdleDown
		c.Message = fmt.Sprintf("nobody used it for %s: %s. %s", length(p.After), replicas(p.To), r.back())
	case u.Soon:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonIdleSoon
		c.Message = fmt.Sprintf("nobody uses it: no GPU is active and no request in flight. %s at %s, unless somebody uses it, scales it up or holds it (gpupilot hold)",
			replicas(p.To), policy.Clock(r.at()))
	case u.Blind:
		c.Status, c.Reason = metav1.ConditionUnknown, v1alpha1.ReasonIdleUnknown
		c.Message = fmt.Sprintf("pod %s has no value of its GPUs or of its requests, so it does not count as idle", u.Without)
	default:
		c.Message = fmt.Sprintf("it is in use, or was within %s", length(p.After))
	}
	return c
}

// back says how a workload gets its replicas back.
func (r *Report) back() string {
	how := "To go on, scale it up, such as with kubectl scale --replicas=1"
	switch {
	case r.policy.Idle.To > 0:
		return "A GPU that becomes active, or a request, ends that; so does kubectl scale"
	case r.activated:
		return how + "; a signal above its activation does so, too"
	}
	return how
}

func replicas(n int32) string {
	if n == 1 {
		return "1 replica stays"
	}
	return fmt.Sprintf("%d replicas stay", n)
}

// Line says that a workload is idle, for the page; empty: it is in use.
func (r *Report) Line() string {
	if r == nil {
		return ""
	}
	u := &r.decision.Idle
	switch {
	case u.Down && r.removed != nil:
		return fmt.Sprintf("%d replicas with %d GPUs were removed at %s: nobody used them for %s", r.removed.From-r.removed.To, r.removed.GPUs, policy.Clock(r.removed.Time.Time), length(r.policy.Idle.After))
	case u.Down || u.Soon:
		return r.Condition().Message
	}
	return ""
}

// length formats a duration of the spec.
func length(d time.Duration) string {
	switch {
	case d%(24*time.Hour) == 0 && d > 24*time.Hour:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	case d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return d.String()
}

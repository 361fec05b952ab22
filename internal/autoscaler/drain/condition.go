// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/facts"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
)

// The reasons of ConditionDraining. They are public.
const (
	reasonDraining   = "Draining"
	reasonGateFailed = "ReadinessGateNotWritten"
	reasonDisruption = "PodDisruptionBudget"
	reasonNoGate     = "NoReadinessGate"
	reasonNotCounted = "RequestsNotCounted"
	reasonGrace      = "GracePeriodTooShort"
	maxMessage       = 1024
	howToDeclare     = "readinessGates: [{conditionType: " + v1alpha1.ReadinessGate + "}]"
)

// Case is what a condition is made of.
type Case struct {
	Decision *scale.Decision
	Sources  []policy.Source
	Template *corev1.PodSpec // nil: not known
	Pods     []*corev1.Pod
	Failure  string // of the last write of a readiness gate
}

// Condition returns ConditionDraining of a GPUAutoscaler with spec.drain. Its message has
// no numbers of the load, because each change of it is written.
func Condition(c *Case) metav1.Condition {
	out := metav1.Condition{Type: v1alpha1.ConditionDraining, Status: metav1.ConditionFalse}
	out.Reason, out.Message = c.reason()
	if out.Reason == reasonDraining {
		out.Status = metav1.ConditionTrue
	}
	out.Message = excerpt.Of(out.Message, maxMessage)
	return out
}

func (c *Case) reason() (reason, message string) {
	if c.Failure != "" {
		return reasonGateFailed, "a replica cannot leave the endpoints, and is removed after maxSeconds: " + c.Failure
	}
	if c.Decision.Leaving > 0 {
		return reasonDraining, "replicas finish their requests before they are removed"
	}
	for i := range c.Decision.Steps {
		if name, ok := c.Decision.Steps[i].Facts.(facts.Disruption); ok {
			if name == "" {
				return reasonDisruption, "PodDisruptionBudgets cannot be read, so no replica is removed: see docs/drain.md"
			}
			return reasonDisruption, fmt.Sprintf("PodDisruptionBudget %s does not allow it, so no replica is removed", name)
		}
	}
	without := slices.IndexFunc(c.Pods, func(p *corev1.Pod) bool { return !replica.Gated(&p.Spec) && !replica.Finished(p) })
	if without >= 0 {
		return reasonNoGate, "replicas are removed with their requests, because their pods do not declare the readiness gate. Add to the pod template: " + howToDeclare
	}
	counted := func(s policy.Source) bool { return len(s.InFlight) > 0 }
	if !slices.ContainsFunc(c.Sources, counted) {
		return reasonNotCounted, "no signal counts the requests in flight, so each replica leaves for maxSeconds. A preset of the server counts them"
	}
	if c.Template != nil {
		if problem := replica.GraceProblem(c.Template); problem != "" {
			return reasonGrace, problem
		}
	}
	return v1alpha1.ReasonNotDraining, "no replica leaves"
}

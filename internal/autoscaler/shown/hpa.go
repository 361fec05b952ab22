// SPDX-License-Identifier: Apache-2.0

package shown

import (
	"cmp"
	"fmt"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/internal/scale/words"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// HPA returns what is shown of a HorizontalPodAutoscaler, as the cache has it; nil: it reads none of the metrics APIs that are
// the controller's, or a GPUAutoscaler owns it.
func HPA(h *autoscalingv2.HorizontalPodAutoscaler, custom, external bool) *view.HPA {
	ref, status := &h.Spec.ScaleTargetRef, &h.Status
	out := &view.HPA{
		Namespace: h.Namespace, Name: h.Name, Kind: ref.Kind, Target: ref.Name,
		Min: *cmp.Or(h.Spec.MinReplicas, new(int32(1))), Max: h.Spec.MaxReplicas, Current: status.CurrentReplicas, Desired: status.DesiredReplicas,
	}
	for i := range h.Spec.Metrics {
		m, now := h.Spec.Metrics[i].External, &status.CurrentMetrics[i].External.Current
		if ours := h.Spec.Metrics[i].Type == autoscalingv2.ExternalMetricSourceType; ours && external || !ours && custom {
			s := view.Signal{Name: m.Metric.Name, Value: number(now.AverageValue, now.Value)}
			s.Target = *cmp.Or(number(m.Target.AverageValue, m.Target.Value), new(float64))
			out.Metrics = append(out.Metrics, s)
		}
	}
	if owner := metav1.GetControllerOfNoCopy(h); out.Metrics == nil || owner != nil && owner.Kind == "GPUAutoscaler" {
		return nil
	}
	if len(status.Conditions) == 0 {
		out.Note = "kube-controller-manager has not looked at it yet"
	}
	for i := range status.Conditions {
		tell(out, &status.Conditions[i])
	}
	return out
}

// tell adds what a condition means for the replicas.
func tell(out *view.HPA, c *autoscalingv2.HorizontalPodAutoscalerCondition) {
	cause := c.Message
	if _, ours, ok := strings.Cut(c.Message, "metrics API: "); ok {
		cause = ours // what the controller answered, without the steps that led to it
	}
	cause = fmt.Sprintf("%s (%s)", cause, c.Reason)
	switch isTrue := c.Status == corev1.ConditionTrue; {
	case c.Type == autoscalingv2.ScalingActive && !isTrue && c.Reason == "ScalingDisabled":
		out.Note = "off: its target has 0 replicas, and it starts none"
	case c.Type == autoscalingv2.ScalingActive && !isTrue && out.Problem == "":
		out.Problem = fmt.Sprintf("it keeps %s: %s", words.Replicas(out.Current), cause)
	case c.Type == autoscalingv2.AbleToScale && !isTrue:
		out.Problem = "it cannot set replicas: " + cause
	case c.Type == autoscalingv2.ScalingLimited && isTrue && c.Reason == "TooManyReplicas":
		out.Note = fmt.Sprintf("at its maximum, maxReplicas: %d: its metrics ask for more", out.Max)
	case c.Type == autoscalingv2.ScalingLimited && isTrue && c.Reason != "TooFewReplicas":
		out.Note = "limited: " + cause
	}
}

// number returns the first quantity that is given.
func number(all ...*resource.Quantity) *float64 {
	if q := cmp.Or(all...); q != nil {
		return new(q.AsApproximateFloat64())
	}
	return nil
}

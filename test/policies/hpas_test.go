// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The account may write the HorizontalPodAutoscalers of GPUAutoscalers, in their two shapes, and no others.
func TestHPAsOfTheAccount(t *testing.T) {
	j := newJudge(t, "gpupilot-controller-hpas", nil)
	f := func(what string, allowed bool, change func(h *autoscalingv2.HorizontalPodAutoscaler, m *autoscalingv2.ExternalMetricSource)) {
		t.Helper()
		h := &autoscalingv2.HorizontalPodAutoscaler{
			TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling/v2", Kind: "HorizontalPodAutoscaler"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "gpupilot-web", OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "gpupilot.dev/v1alpha1", Kind: "GPUAutoscaler", Name: "web", UID: "u", Controller: new(true),
			}}},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, MinReplicas: new(int32(1)), MaxReplicas: 8,
				Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
					Metric: autoscalingv2.MetricIdentifier{Name: "gpupilot_desired_replicas", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"gpuautoscaler": "web"}}},
					Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: new(resource.MustParse("1"))},
				}}},
			},
		}
		before := h.DeepCopy()
		change(h, h.Spec.Metrics[0].External)
		if why := j.refuses(t, "horizontalpodautoscalers", h, nil); (why == "") != allowed {
			t.Errorf("create, %s: %q", what, why)
		}
		if why := j.refuses(t, "horizontalpodautoscalers", h, before); (why == "") != allowed {
			t.Errorf("change, %s: %q", what, why)
		}
	}
	disabled := &autoscalingv2.HPAScalingRules{SelectPolicy: new(autoscalingv2.DisabledPolicySelect)}
	f("as rendered", true, func(*autoscalingv2.HorizontalPodAutoscaler, *autoscalingv2.ExternalMetricSource) {})
	f("stopped", true, func(h *autoscalingv2.HorizontalPodAutoscaler, m *autoscalingv2.ExternalMetricSource) {
		m.Metric = autoscalingv2.MetricIdentifier{Name: "gpupilot-stopped-3"}
		h.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: disabled, ScaleDown: disabled}
	})
	f("stopped in one direction", false, func(h *autoscalingv2.HorizontalPodAutoscaler, m *autoscalingv2.ExternalMetricSource) {
		m.Metric = autoscalingv2.MetricIdentifier{Name: "gpupilot-stopped-3"}
		h.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: disabled}
	})
	f("another name", false, func(h *autoscalingv2.HorizontalPodAutoscaler, _ *autoscalingv2.ExternalMetricSource) { h.Name = "web" })
	f("no owner", false, func(h *autoscalingv2.HorizontalPodAutoscaler, _ *autoscalingv2.ExternalMetricSource) {
		h.OwnerReferences = nil
	})
	f("another kind of owner", false, func(h *autoscalingv2.HorizontalPodAutoscaler, _ *autoscalingv2.ExternalMetricSource) {
		h.OwnerReferences[0].Kind = "MetricQuery"
	})
	f("the kube-system namespace", false, func(h *autoscalingv2.HorizontalPodAutoscaler, _ *autoscalingv2.ExternalMetricSource) {
		h.Namespace = "kube-system"
	})
	f("another metric", false, func(_ *autoscalingv2.HorizontalPodAutoscaler, m *autoscalingv2.ExternalMetricSource) {
		m.Metric.Name = "cpu"
	})
	f("another autoscaler", false, func(_ *autoscalingv2.HorizontalPodAutoscaler, m *autoscalingv2.ExternalMetricSource) {
		m.Metric.Selector.MatchLabels["gpuautoscaler"] = "big"
	})
	f("all autoscalers", false, func(_ *autoscalingv2.HorizontalPodAutoscaler, m *autoscalingv2.ExternalMetricSource) {
		m.Metric.Selector = nil
	})
	f("another target", false, func(_ *autoscalingv2.HorizontalPodAutoscaler, m *autoscalingv2.ExternalMetricSource) {
		m.Target.AverageValue = new(resource.MustParse("100m"))
	})
	f("two metrics", false, func(h *autoscalingv2.HorizontalPodAutoscaler, _ *autoscalingv2.ExternalMetricSource) {
		h.Spec.Metrics = append(h.Spec.Metrics, h.Spec.Metrics[0])
	})
}

// SPDX-License-Identifier: Apache-2.0

package shown

import (
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/internal/autoscaler/kube"
)

// condition is one of a HorizontalPodAutoscaler.
func condition(kind autoscalingv2.HorizontalPodAutoscalerConditionType, status corev1.ConditionStatus, reason, message string) autoscalingv2.HorizontalPodAutoscalerCondition {
	return autoscalingv2.HorizontalPodAutoscalerCondition{Type: kind, Status: status, Reason: reason, Message: message}
}

// hpaOf is a HorizontalPodAutoscaler on DCGM_FI_DEV_GPU_UTIL of pods, as the cache keeps it.
func hpaOf(t *testing.T, change func(h *autoscalingv2.HorizontalPodAutoscaler)) *autoscalingv2.HorizontalPodAutoscaler {
	t.Helper()
	target, now := resource.MustParse("60"), resource.MustParse("36500m")
	h := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "classic"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{Kind: "Deployment", Name: "chat"}, MaxReplicas: 8,
			Metrics: []autoscalingv2.MetricSpec{
				{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU}},
				{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
					Metric: autoscalingv2.MetricIdentifier{Name: "DCGM_FI_DEV_GPU_UTIL"}, Target: autoscalingv2.MetricTarget{AverageValue: &target},
				}},
			},
		},
		Status: autoscalingv2.HorizontalPodAutoscalerStatus{
			CurrentReplicas: 3, DesiredReplicas: 4,
			CurrentMetrics: []autoscalingv2.MetricStatus{
				{}, {Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricStatus{Current: autoscalingv2.MetricValueStatus{AverageValue: &now}}},
			},
			Conditions: []autoscalingv2.HorizontalPodAutoscalerCondition{condition(autoscalingv2.ScalingActive, corev1.ConditionTrue, "ValidMetricFound", "")},
		},
	}
	if change != nil {
		change(h)
	}
	slim, err := kube.Slim(nil)(h)
	if err != nil {
		t.Fatal(err)
	}
	if slim, err = kube.Slim(nil)(slim); err != nil { // informers do it twice
		t.Fatal(err)
	}
	return slim.(*autoscalingv2.HorizontalPodAutoscaler)
}

// An HPA that reads our API is shown with the value and the target of the metric, and only with what is ours.
func TestHPA(t *testing.T) {
	got := HPA(hpaOf(t, nil), true, false)
	if got == nil || got.Kind != "Deployment" || got.Target != "chat" || got.Min != 1 || got.Max != 8 || got.Current != 3 || got.Desired != 4 || got.Problem != "" || got.Note != "" ||
		len(got.Metrics) != 1 || got.Metrics[0].Name != "DCGM_FI_DEV_GPU_UTIL" || got.Metrics[0].Target != 60 || got.Metrics[0].Value == nil || *got.Metrics[0].Value != 36.5 {
		t.Errorf("%+v", got)
	}
	if HPA(hpaOf(t, nil), false, true) != nil {
		t.Error("another adapter's HPA is shown")
	}
	if HPA(hpaOf(t, func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Spec.Metrics = h.Spec.Metrics[:1] }), true, true) != nil {
		t.Error("an HPA on CPU is shown")
	}
	if HPA(hpaOf(t, func(h *autoscalingv2.HorizontalPodAutoscaler) {
		h.OwnerReferences = []metav1.OwnerReference{{Kind: "GPUAutoscaler", Controller: new(true)}}
	}), true, true) != nil {
		t.Error("the HPA of a GPUAutoscaler is shown beside it")
	}
	if got := HPA(hpaOf(t, func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Status.CurrentMetrics = nil }), true, false); got.Metrics[0].Value != nil {
		t.Errorf("no value is %v", *got.Metrics[0].Value)
	}
}

// A condition is told by what it means for the replicas, and by its cause.
func TestHPAConditions(t *testing.T) {
	f := func(problem, note string, all ...autoscalingv2.HorizontalPodAutoscalerCondition) {
		t.Helper()
		got := HPA(hpaOf(t, func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Status.Conditions = all }), true, false)
		if got.Problem != problem || got.Note != note {
			t.Errorf("problem %q, note %q, want %q, %q", got.Problem, got.Note, problem, note)
		}
	}
	f("", "kube-controller-manager has not looked at it yet")
	f("it keeps 3 replicas: metric GPU_UTL is not known; did you mean GPU_UTIL? (FailedGetPodsMetric)", "", condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "FailedGetPodsMetric",
		"the HPA was unable to compute the replica count: unable to get metric GPU_UTL: unable to fetch metrics from custom metrics API: metric GPU_UTL is not known; did you mean GPU_UTIL?"))
	f("", "off: its target has 0 replicas, and it starts none", condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "ScalingDisabled", "scaling is disabled since the replica count of the target is zero"))
	f("it cannot set replicas: deployments.apps \"chat\" not found (FailedGetScale)", "",
		condition(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedGetScale", `deployments.apps "chat" not found`), condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "FailedGetPodsMetric", "old"))
	f("", "at its maximum, maxReplicas: 8: its metrics ask for more", condition(autoscalingv2.ScalingLimited, corev1.ConditionTrue, "TooManyReplicas", "the desired replica count is more than the maximum replica count"))
	f("", "", condition(autoscalingv2.ScalingLimited, corev1.ConditionTrue, "TooFewReplicas", "the desired replica count is less than the minimum replica count"))
}

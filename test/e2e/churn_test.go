// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"slices"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/stack"
)

// A pod of each of two workloads is deleted again and again, before a window and a start have passed. One has a GPUAutoscaler,
// the other an HPA with the same metric, target and rules: the first one's replicas are not later down than the other's.
func TestChurnBesideHPA(t *testing.T) {
	const (
		name, peer  = "churn", "churn-hpa"
		load, fewer = 3.1, 1.0
		window      = 10 // seconds
		most        = 40 // deletions
	)
	for _, n := range []string{name, peer} {
		rig.Offer(n, load)
		rig.Deploy(t, n, stack.Need(load), 6*time.Second)
	}
	rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) {
		a.Spec.Behavior.ScaleDown = &v1alpha1.ScalingRules{
			StabilizationWindowSeconds: new(int32(window)),
			Policies:                   []v1alpha1.ScalingPolicy{{Type: "Percent", Value: 100, PeriodSeconds: 15}},
		}
	})
	average, down := resource.MustParse("60"), stack.AtOnce()
	down.ScaleDown.StabilizationWindowSeconds = new(int32(window))
	rig.Create(t, &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: peer},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: peer},
			MaxReplicas:    12, Behavior: down,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "DCGM_FI_DEV_GPU_UTIL"},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &average},
			}}},
		},
	})
	for _, n := range []string{name, peer} {
		rig.Spread(t, n, int(stack.Need(load)))
	}
	paths := map[string][]int32{}
	for _, n := range []string{name, peer} {
		rig.Offer(n, fewer)
	}
	for range most {
		for _, n := range []string{name, peer} {
			deleteServing(t, n)
		}
		time.Sleep((window + 1) * time.Second)
		for _, n := range []string{name, peer} {
			replicas, err := rig.Replicas(t.Context(), namespace, n)
			stack.Must(t, err)
			paths[n] = append(paths[n], replicas)
		}
		ours, theirs := paths[name], paths[peer]
		if slices.Min(ours) < stack.Need(fewer) {
			t.Fatalf("%d replicas, fewer than the %d that the load needs", ours, stack.Need(fewer))
		}
		if k := len(theirs) - 2; k >= 0 && ours[k+1] > theirs[k] {
			t.Fatalf("%d replicas, those of the HPA before: %d", ours, theirs)
		}
		if ours[len(ours)-1] == stack.Need(fewer) {
			t.Logf("replicas after each deletion: %d, those of the HPA: %d", ours, theirs)
			return
		}
	}
	t.Errorf("%d replicas after %d deletions, want %d; those of the HPA: %d", paths[name], most, stack.Need(fewer), paths[peer])
}

// deleteServing deletes a pod that serves, if one does.
func deleteServing(t *testing.T, name string) {
	t.Helper()
	ready, err := rig.ReadyPods(t.Context(), namespace, client.MatchingLabels{"app": name})
	stack.Must(t, err)
	if len(ready) == 0 {
		return
	}
	err = rig.Client.Delete(context.WithoutCancel(t.Context()), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: ready[0]}})
	stack.Must(t, client.IgnoreNotFound(err))
}

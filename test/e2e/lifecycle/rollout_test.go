// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

// rollOut changes the pod template of a Deployment, and how long its pods take to serve.
func rollOut(t *testing.T, name, startup string) {
	t.Helper()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	patch := fmt.Sprintf(`{"spec": {"template": {"metadata": {"annotations": {%q: %q}}}}}`, simnode.StartupAnnotation, startup)
	if err := rig.Client.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		t.Fatal(err)
	}
}

// rolledOut reports whether the Deployment controller has replaced all pods.
func rolledOut(t *testing.T, name string) error {
	t.Helper()
	var d appsv1.Deployment
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &d); err != nil {
		return err
	}
	if s := d.Status; s.ObservedGeneration < d.Generation || s.UpdatedReplicas < *d.Spec.Replicas || s.Replicas != s.UpdatedReplicas || s.AvailableReplicas < s.Replicas {
		return fmt.Errorf("%s: %d of %d pods are new, %d of these serve", name, s.UpdatedReplicas, s.Replicas, s.AvailableReplicas)
	}
	return nil
}

// rolling waits until a status says that the workload is rolled out.
func rolling(t *testing.T, statuses *stack.Statuses) {
	t.Helper()
	statuses.Await(t, func(st v1alpha1.GPUAutoscalerStatus) error {
		if !meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionRollout) {
			return fmt.Errorf("conditions %+v", st.Conditions)
		}
		return nil
	})
}

// Two Deployments with the same steady load are rolled out by the real Deployment
// controller: one with a GPUAutoscaler, whose replicas do not change, one with the real
// HorizontalPodAutoscaler on the same metric. Then a version that never serves is rolled
// out, the load falls, and the scale-down does not wait.
func TestRollout(t *testing.T) {
	t.Parallel() // beside TestSchedule
	const name, beside, load, replicas = "rollout", "rolloutbeside", 2.2, 4
	half := intstr.FromString("50%")
	for _, x := range []string{name, beside} {
		rig.Offer(x, load)
		d := stack.Deployment(namespace, x, replicas, time.Second)
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &half, MaxUnavailable: new(intstr.FromInt(0))}
		rig.DeployThat(t, d)
	}
	rig.Spread(t, name, replicas)
	rig.Autoscale(t, name, nil)
	rig.Measured(t, name, replicas)
	average := resource.MustParse("60")
	hpa := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: beside},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: beside},
			MaxReplicas:    12,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "DCGM_FI_DEV_GPU_UTIL"},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &average},
			}}},
		},
	}
	if err := rig.Client.Create(t.Context(), hpa); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rig.Client.Delete(context.Background(), hpa); err != nil {
			t.Error(err)
		}
	})
	ours, others, statuses := rig.Record(t, name), rig.Record(t, beside), rig.Statuses(t, name)
	rollOut(t, name, "6s")
	rollOut(t, beside, "6s")
	rolling(t, statuses)
	stack.Eventually(t, func() error { return rolledOut(t, name) })
	if v := ours.Values(); slices.Max(v) != replicas || slices.Min(v) != replicas {
		t.Errorf("replicas went %v during a rollout at steady load, want %d", v, replicas)
	}
	t.Logf("replicas during the rollout: %v; with the HorizontalPodAutoscaler: %v", ours.Values(), others.Values())

	rollOut(t, name, "1h") // it never serves
	stack.Eventually(t, func() error {
		var d appsv1.Deployment
		err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &d)
		if err == nil && d.Status.UnavailableReplicas == 0 {
			err = fmt.Errorf("no pod of the new version: %+v", d.Status)
		}
		return err
	})
	rolling(t, rig.Statuses(t, name))
	rig.Offer(name, 0.8)
	rig.WantReplicas(t, name, "2", func(n int32) bool { return n == 2 })
	rolling(t, rig.Statuses(t, name))
	if v := ours.Values(); slices.Max(v) != replicas {
		t.Errorf("replicas went %v, want %d at most", v, replicas)
	}
}

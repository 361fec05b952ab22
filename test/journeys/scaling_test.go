// SPDX-License-Identifier: Apache-2.0

//go:build !race

package journeys

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/stack"
)

// A GPUAutoscaler follows the load up and down, without overshoot, and
// says why.
func TestUpAndDown(t *testing.T) {
	t.Parallel()
	const name, load = "updown", 3.4
	rig.Offer(name, 0.3)
	rig.Deploy(t, name, 1, 3*time.Second)
	seen := rig.Record(t, name)
	rig.Autoscale(t, name, nil)
	stack.Eventually(t, func() error {
		if rig.Status(t, name).LastDecision == nil {
			return fmt.Errorf("nothing decided")
		}
		return nil
	})

	rig.Offer(name, load)
	rig.Serves(t, name, load)
	learned(t, name)
	rig.Offer(name, 0.3)
	rig.WantReplicas(t, name, "1", func(n int32) bool { return n == 1 })

	values := seen.Values()
	if peak := slices.Max(values); float64(peak) > 1.5*float64(stack.Need(load)) {
		t.Errorf("replicas went %v: the peak is more than 1.5 times the %d that were needed", values, stack.Need(load))
	}
	explained(t, name, len(values)-1)
}

// learned checks that the start-up that was learned is that of the pods, by the times that they have.
func learned(t *testing.T, name string) {
	t.Helper()
	var st v1alpha1.GPUAutoscalerStatus
	stack.Eventually(t, func() error {
		if st = rig.Status(t, name); st.Startup == nil {
			return fmt.Errorf("no start-up is learned: %+v", st)
		}
		return nil
	})
	var pods corev1.PodList
	longest := time.Duration(0)
	if err := rig.Client.List(t.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels{"app": name}); err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		for _, c := range pods.Items[i].Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				longest = max(longest, c.LastTransitionTime.Sub(pods.Items[i].CreationTimestamp.Time))
			}
		}
	}
	if s := st.Startup.P95Seconds; s < 2 || s > int32(longest/time.Second)+1 { // the times are whole seconds
		t.Errorf("learned start-up: %+v; it takes 3 s and a bit, and the slowest took %v", st.Startup, longest)
	}
}

// explained checks that status and events say why, an event per change.
func explained(t *testing.T, name string, changes int) {
	t.Helper()
	st := rig.Status(t, name)
	if st.LastDecision == nil || len(st.LastDecision.Steps) == 0 || len(st.LastDecision.Inputs) == 0 || st.LastDecision.Message == "" {
		t.Errorf("the last decision does not explain itself: %+v", st.LastDecision)
	}
	if !meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionReady) {
		t.Errorf("not ready: %+v", st.Conditions)
	}
	stack.Eventually(t, func() error {
		var events eventsv1.EventList
		if err := rig.Client.List(t.Context(), &events, client.InNamespace(namespace)); err != nil {
			return err
		}
		n := 0
		for _, e := range events.Items {
			if e.Regarding.Kind == "GPUAutoscaler" && e.Regarding.Name == name && e.Type == corev1.EventTypeNormal {
				n++
				if e.Series != nil {
					n += int(e.Series.Count) - 1
				}
			}
		}
		if n < changes {
			return fmt.Errorf("%d events for %d changes of replicas", n, changes)
		}
		return nil
	})
}

// The real HorizontalPodAutoscaler scales on our custom.metrics API.
func TestHPAOnOurMetrics(t *testing.T) {
	t.Parallel()
	const name, load = "hpa", 3.4
	rig.Offer(name, 0.3)
	rig.Deploy(t, name, 1, 3*time.Second)
	average := resource.MustParse("60")
	hpa := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			MaxReplicas:    12,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "DCGM_FI_DEV_GPU_UTIL"},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &average},
			}}},
			Behavior: stack.AtOnce(),
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
	rig.Offer(name, load)
	rig.Serves(t, name, load)
	rig.Offer(name, 0.3)
	rig.WantReplicas(t, name, "1", func(n int32) bool { return n == 1 })
}

// Advice is given and not taken.
func TestAdvise(t *testing.T) {
	t.Parallel()
	const name, load = "advise", 0.95
	rig.Offer(name, load)
	rig.Deploy(t, name, 1, time.Second)
	rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) { a.Spec.Actuation = v1alpha1.ActuationAdvise })
	stack.Eventually(t, func() error {
		if n := rig.Status(t, name).DesiredReplicas; n == nil || *n < stack.Need(load) {
			return fmt.Errorf("advice is %v replicas, want %d", n, stack.Need(load))
		}
		return nil
	})
	if n, err := rig.Replicas(t.Context(), namespace, name); err != nil || n != 1 {
		t.Errorf("advice was taken: %d replicas (%v)", n, err)
	}
}

// A metric of the pods' own decides as a GPU's does, in the pods' unit.
func TestPodsOwnMetric(t *testing.T) {
	t.Parallel()
	const name, load = "podsmetric", 0.95
	rig.Offer(name, load)
	rig.Deploy(t, name, 1, time.Second)
	rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) {
		a.Spec.Signals = []v1alpha1.Signal{{
			Pods:   &v1alpha1.PodsSignal{Metric: "vllm:num_requests_running"},
			Target: &v1alpha1.Target{Value: resource.MustParse("8")},
		}}
	})
	// 16 requests are in flight at 100 %: 15.2 here, so two replicas are needed.
	rig.WantReplicas(t, name, "2", func(n int32) bool { return n == 2 })
	rig.Offer(name, 0.3)
	rig.WantReplicas(t, name, "1", func(n int32) bool { return n == 1 })
}

// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
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
	"github.com/gpupilot/gpupilot/test/scalerig"
	"github.com/gpupilot/gpupilot/test/stack"
)

// (a) A GPUAutoscaler follows the load up and down, without overshoot, and
// says why.
func TestUpAndDown(t *testing.T) {
	const name, load = "updown", 3.4
	rig.Offer(name, 0.3)
	rig.Deploy(t, name, 1, 3*time.Second)
	seen := rig.Record(t, name)
	rig.Autoscale(t, name, nil)
	scalerig.Eventually(t, func() error {
		if rig.Status(t, name).LastDecision == nil {
			return fmt.Errorf("nothing decided")
		}
		return nil
	})

	rig.Offer(name, load)
	scalerig.Eventually(t, func() error {
		if n := rig.Serving(t, name); n < int(scalerig.Need(load)) {
			return fmt.Errorf("%d replicas serve, %d are needed", n, scalerig.Need(load))
		}
		return nil
	})
	rig.Offer(name, 0.3)
	rig.WantReplicas(t, name, "1", func(n int32) bool { return n == 1 })

	values := seen.Values()
	if peak := slices.Max(values); float64(peak) > 1.5*float64(scalerig.Need(load)) {
		t.Errorf("replicas went %v: the peak is more than 1.5 times the %d that were needed", values, scalerig.Need(load))
	}
	explained(t, name, len(values)-1)
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
	if st.Startup == nil || st.Startup.P95Seconds < 2 || st.Startup.P95Seconds > 20 {
		t.Errorf("learned start-up: %+v; it takes 3 s and a bit", st.Startup)
	}
	scalerig.Eventually(t, func() error {
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

// (b) The real HorizontalPodAutoscaler scales on our custom.metrics API.
func TestHPAOnOurMetrics(t *testing.T) {
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
			Behavior: atOnce(),
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
	scalerig.Eventually(t, func() error {
		if n := rig.Serving(t, name); n < int(scalerig.Need(load)) {
			return fmt.Errorf("%d replicas serve, %d are needed", n, scalerig.Need(load))
		}
		return nil
	})
	rig.Offer(name, 0.3)
	rig.WantReplicas(t, name, "1", func(n int32) bool { return n == 1 })
}

// atOnce is the behavior of a HorizontalPodAutoscaler that neither waits with a scale-down nor limits the pods of a scale-up,
// as the default does for 15 s.
func atOnce() *autoscalingv2.HorizontalPodAutoscalerBehavior {
	return &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp:   &autoscalingv2.HPAScalingRules{Policies: []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PodsScalingPolicy, Value: 12, PeriodSeconds: 1}}},
		ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(0))},
	}
}

// (c) When an agent dies its pods' data goes stale, and nothing scales down.
func TestAgentDies(t *testing.T) {
	const name, load = "agentdies", 1.5
	rig.Offer(name, load)
	rig.Deploy(t, name, 3, time.Second)
	rig.Spread(t, name, 3)
	rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) {
		zero := int32(0)
		a.Spec.Behavior.ScaleDown.StabilizationWindowSeconds = &zero
	})
	scalerig.Eventually(t, func() error {
		if d := rig.Status(t, name).LastDecision; d == nil || len(d.Inputs) == 0 || d.Inputs[0].Replicas != 3 {
			return fmt.Errorf("not all three replicas are measured: %+v", d)
		}
		return nil
	})

	// One agent dies: what the others say must not pass for the whole.
	agents := agentsByNode(t, name)
	first := agents[0]
	if err := rig.Nodes.Kill(stack.Namespace, first); err != nil {
		t.Fatal(err)
	}
	rig.Stays(t, name, 3, 8*time.Second)

	// All die, and the load really goes away: still nothing is known of it.
	for _, a := range agents[1:] {
		if err := rig.Nodes.Kill(stack.Namespace, a); err != nil {
			t.Fatal(err)
		}
	}
	rig.Offer(name, 0)
	rig.Stays(t, name, 3, 10*time.Second)
	d := rig.Status(t, name).LastDecision
	if !strings.Contains(d.Reason, "Missing") {
		t.Errorf("with every agent dead the reason is %s: %s", d.Reason, d.Message)
	}

	// They come back, and with them the truth.
	for _, a := range agents {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: stack.Namespace, Name: a}}
		if err := rig.Client.Delete(t.Context(), p, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	rig.WantReplicas(t, name, "1", func(n int32) bool { return n == 1 })
}

// agentsByNode are the agents of the nodes on which the workload's pods run.
func agentsByNode(t *testing.T, name string) []string {
	t.Helper()
	var pods, agents corev1.PodList
	if err := rig.Client.List(t.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels{"app": name}); err != nil {
		t.Fatal(err)
	}
	if err := rig.Client.List(t.Context(), &agents, client.InNamespace(stack.Namespace), client.MatchingLabels{"app.kubernetes.io/name": "gpupilot-agent"}); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, a := range agents.Items {
		if slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName == a.Spec.NodeName }) {
			out = append(out, a.Name)
		}
	}
	if len(out) == 0 {
		t.Fatalf("no agent on the nodes of %s", name)
	}
	return out
}

// (d) The controller is killed in the middle of a rise: its successor goes on.
func TestControllerRestartsMidRamp(t *testing.T) {
	const name, load = "restart", 3.4
	rig.Offer(name, 0.3)
	rig.Deploy(t, name, 1, 3*time.Second)
	seen := rig.Record(t, name)
	rig.Autoscale(t, name, nil)
	rig.Offer(name, load)
	rig.WantReplicas(t, name, "more than 1", func(n int32) bool { return n > 1 })
	rig.KillController()
	before, err := rig.Replicas(t.Context(), namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	if err := rig.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	scalerig.Eventually(t, func() error {
		if n := rig.Serving(t, name); n < int(scalerig.Need(load)) {
			return fmt.Errorf("%d replicas serve, %d are needed", n, scalerig.Need(load))
		}
		return nil
	})
	values := seen.Values()
	for i, n := range values[1:] {
		if n < values[i] {
			t.Errorf("replicas went %v: down in the middle of a rise (killed at %d)", values, before)
		}
	}
	if peak := slices.Max(values); float64(peak) > 1.5*float64(scalerig.Need(load)) {
		t.Errorf("replicas went %v: more than 1.5 times the %d that were needed", values, scalerig.Need(load))
	}
}

// Advice is given and not taken.
func TestAdvise(t *testing.T) {
	const name, load = "advise", 0.95
	rig.Offer(name, load)
	rig.Deploy(t, name, 1, time.Second)
	rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) { a.Spec.Actuation = v1alpha1.ActuationAdvise })
	scalerig.Eventually(t, func() error {
		if n := rig.Status(t, name).DesiredReplicas; n == nil || *n < scalerig.Need(load) {
			return fmt.Errorf("advice is %v replicas, want %d", n, scalerig.Need(load))
		}
		return nil
	})
	if n, err := rig.Replicas(t.Context(), namespace, name); err != nil || n != 1 {
		t.Errorf("advice was taken: %d replicas (%v)", n, err)
	}
}

// A metric of the pods' own decides as a GPU's does, in the pods' unit.
func TestPodsOwnMetric(t *testing.T) {
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

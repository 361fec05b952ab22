// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/terminal/doctor"
	"github.com/gpupilot/gpupilot/internal/terminal/remote"
	"github.com/gpupilot/gpupilot/internal/window/view"
	"github.com/gpupilot/gpupilot/test/stack"
)

// Where one looks, the cause of a signal without a value stands: in the condition, the Event, explain, the page and doctor.
func TestUnreadableSignalsSayWhy(t *testing.T) {
	signal := func(metric string, port *intstr.IntOrString) v1alpha1.Signal {
		return v1alpha1.Signal{Pods: &v1alpha1.PodsSignal{Metric: metric, Port: port}, Target: &v1alpha1.Target{Value: resource.MustParse("8")}}
	}
	f := func(name string, s v1alpha1.Signal, want string) {
		t.Helper()
		rig.Deploy(t, name, 1, time.Second)
		rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) { a.Spec.Signals = []v1alpha1.Signal{s} })
		var a v1alpha1.GPUAutoscaler
		stack.Eventually(t, func() error {
			if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &a); err != nil {
				return err
			}
			c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionSignals)
			if c == nil || c.Status != "False" || !strings.Contains(c.Message, want) {
				return fmt.Errorf("the condition is %+v, want %q", c, want)
			}
			return nil
		})
		var text strings.Builder
		remote.Write(&text, &a, time.Now())
		places := map[string]string{"explain": text.String(), "doctor": doctorSays(t, name), "page": problemOf(t, name)}
		for place, says := range places {
			if !strings.Contains(says, want) {
				t.Errorf("%s of %s says %q, want %q", place, name, says, want)
			}
		}
		stack.Eventually(t, func() error { return eventSays(t, name, want) })
	}
	f("port", signal("vllm:num_requests_running", new(intstr.FromInt32(9))), "port 9, which no container declares, path /metrics, cannot be read: connect: connection refused; set port or path")
	f("misspelt", signal("vllm:num_requests_runing", nil), "answers without vllm:num_requests_runing: did you mean vllm:num_requests_running?")
}

// What is broken in an object, or around it, is said with what becomes of the replicas and what to do: in the condition, explain
// and the page.
func TestBrokenObjectsSayWhatToDo(t *testing.T) {
	f := func(name, want string, change func(*v1alpha1.GPUAutoscaler)) {
		t.Helper()
		rig.Deploy(t, name, 1, 0)
		rig.Autoscale(t, name, change)
		says := func() (out string) {
			a := v1alpha1.GPUAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
			stack.Must(t, rig.Client.Get(t.Context(), client.ObjectKeyFromObject(&a), &a))
			var text strings.Builder
			remote.Write(&text, &a, time.Now())
			if c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionReady); c != nil && strings.Contains(c.Message, want) && strings.Contains(text.String(), want) {
				return problemOf(t, name)
			}
			return text.String()
		}
		stack.Eventually(t, func() error {
			if got := says(); !strings.Contains(got, want) {
				return fmt.Errorf("%s says %q, want %q", name, got, want)
			}
			return nil
		})
	}
	target := func(to v1alpha1.CrossVersionObjectReference) func(*v1alpha1.GPUAutoscaler) {
		return func(a *v1alpha1.GPUAutoscaler) { a.Spec.ScaleTargetRef = to }
	}
	f("astray", `"nope" not found; nothing is scaled: create it, or correct spec.scaleTargetRef`, target(v1alpha1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "nope"}))
	f("cluster", "kind Node of v1 is cluster-scoped", target(v1alpha1.CrossVersionObjectReference{APIVersion: "v1", Kind: "Node", Name: "n"}))
	f("cron", `"fry" is not a number from 0 to 7; the replicas stay until the spec is valid`, func(a *v1alpha1.GPUAutoscaler) {
		a.Spec.Schedules = []v1alpha1.Schedule{{Name: "day", Cron: "0 8 * * mon-fry", Duration: &metav1.Duration{Duration: time.Hour}, MinReplicas: new(int32(2))}}
	})
	hpa := objectHPA("rival", "DCGM_FI_DEV_GPU_UTIL", nil, autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: new(resource.MustParse("60"))})
	rig.Create(t, hpa)
	f("rival", "already scaled by HorizontalPodAutoscaler rival, so this object does not scale it: delete one of the two", nil)
	binding := &rbacv1.ClusterRoleBinding{}
	stack.Must(t, rig.Client.Get(t.Context(), client.ObjectKey{Name: "gpupilot-controller:scale"}, binding))
	stack.Must(t, rig.Client.Delete(t.Context(), binding))
	t.Cleanup(func() {
		binding.ObjectMeta = metav1.ObjectMeta{Name: binding.Name}
		stack.Must(t, rig.Client.Create(context.Background(), binding))
	})
	f("forbidden", "may not update deployments/scale.apps in the namespace llm: the binding of ClusterRole gpupilot-controller:scale is missing, or the role has changed; the replicas stay until you apply deploy/rbac/controller.yaml",
		func(a *v1alpha1.GPUAutoscaler) { a.Spec.MinReplicas = new(int32(2)) })
}

// Pods that a ResourceQuota keeps from being created are held up by it, in the status and in explain.
func TestQuotaIsNamed(t *testing.T) {
	const space = "quota"
	rig.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space}})
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: "one-pod"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}}}
	rig.Create(t, quota)
	stack.Eventually(t, func() error {
		if err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(quota), quota); err != nil || len(quota.Status.Hard) == 0 {
			return fmt.Errorf("the quota is not in force: %w", err)
		}
		return nil
	})
	a := stack.Autoscaler("full")
	a.Namespace, a.Spec.MinReplicas = space, new(int32(3))
	rig.Create(t, stack.Deployment(space, "full", 1, time.Second))
	rig.Create(t, a)
	stack.Eventually(t, func() error {
		if err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(a), a); err != nil {
			return err
		}
		var text strings.Builder
		remote.Write(&text, a, time.Now())
		if want := "2 held up by FailedCreate: pods "; !strings.Contains(text.String(), want) || !strings.Contains(text.String(), "exceeded quota: one-pod") {
			return fmt.Errorf("explain says %q, want %q and the quota", &text, want)
		}
		return nil
	})
}

// eventSays returns an error as long as no Event about a GPUAutoscaler says it.
func eventSays(t *testing.T, name, want string) error {
	var events eventsv1.EventList
	if err := rig.Client.List(t.Context(), &events, client.InNamespace(namespace)); err != nil {
		return err
	}
	for i := range events.Items {
		if e := &events.Items[i]; e.Regarding.Name == name && e.Reason == "NoFreshData" && strings.Contains(e.Note, want) {
			return nil
		}
	}
	return fmt.Errorf("no Event about %s says %q", name, want)
}

// doctorSays is what GP406 finds about a GPUAutoscaler.
func doctorSays(t *testing.T, name string) (out string) {
	t.Helper()
	api, err := remote.NewAPI(rig.REST)
	if err != nil {
		t.Fatal(err)
	}
	w := doctor.Where{API: api, Namespace: stack.Namespace, Now: time.Now, Controller: func(ctx context.Context, v *view.View) error {
		return page().Get(ctx, "api/v1/view", nil, v)
	}}
	checks, err := (&doctor.Selection{Only: []string{"GP406"}}).Select()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range doctor.Run(checks, w.Gather(t.Context(), false)) {
		for _, found := range r.Findings {
			if strings.HasSuffix(found.Object, "/"+name) {
				out += found.Message + "\n"
			}
		}
	}
	return out
}

func page() *remote.Controller {
	return &remote.Controller{Cluster: &remote.Cluster{}, Address: rig.ControllerURL}
}

// problemOf is what the page says about a GPUAutoscaler.
func problemOf(t *testing.T, name string) string {
	t.Helper()
	var v view.View
	if err := page().Get(t.Context(), "api/v1/view", nil, &v); err != nil {
		t.Fatal(err)
	}
	for i := range v.Workloads {
		if v.Workloads[i].Name == name {
			return v.Workloads[i].Problem
		}
	}
	return ""
}

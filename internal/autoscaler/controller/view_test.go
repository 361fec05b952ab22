// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// Nodes show the pool and the model that their labels name, and why their GPUs
// are not healthy, until they are deleted.
func TestNodesShowTheirPool(t *testing.T) {
	r := newRig(t)
	fillFleet(t, r.store, 5, time.Now())
	node := func(i int, labels map[string]string, conditions ...corev1.NodeCondition) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%05d", i), Labels: labels}, Status: corev1.NodeStatus{Conditions: conditions}}
	}
	const product, instance = "nvidia.com/gpu.product", "node.kubernetes.io/instance-type"
	r.deps.Devices.NodeChanged(node(0, map[string]string{"cloud.google.com/gke-nodepool": "a3", instance: "a3-highgpu-8g", product: "NVIDIA-H100"}), false)
	r.deps.Devices.NodeChanged(node(1, map[string]string{instance: "p5.48xlarge"}, corev1.NodeCondition{Type: gpu.NodeHealthCondition, Status: corev1.ConditionFalse, Reason: "GPULost", Message: "GPU 3"}), false)
	r.deps.Devices.NodeChanged(node(2, map[string]string{product: "Tesla-T4"}, corev1.NodeCondition{Type: gpu.NodeHealthCondition, Status: corev1.ConditionTrue, Reason: "GPUsHealthy"}), false)
	r.deps.Devices.NodeChanged(node(3, map[string]string{instance: "x"}), false)
	r.deps.Devices.NodeChanged(node(3, nil), true)
	nodes := r.View().Nodes
	for i, want := range []view.Node{{Pool: "a3", Model: "NVIDIA-H100"}, {Pool: "p5.48xlarge", Fault: "GPULost: GPU 3"}, {Pool: "Tesla-T4", Model: "Tesla-T4"}, {}, {}} {
		if n := nodes[i]; n.Pool != want.Pool || n.Model != want.Model || n.Fault != want.Fault || len(n.GPUs) != 8 || *n.GPUs[7].MemoryTotalMiB != *n.GPUs[7].MemoryUsedMiB+float64((i+7+3)%101) {
			t.Errorf("%s: pool %q, model %q, fault %q, %d GPUs", n.Name, n.Pool, n.Model, n.Fault, len(n.GPUs))
		}
	}
}

// A pod that has not become ready yet is no fault of anybody; one that was, is.
func TestTargetsOfStartingPods(t *testing.T) {
	r := newRig(t)
	created := r.now.Add(-40 * time.Second)
	r.pods.Pods = append(r.pods.Pods,
		pod("chat", "starts", created), pod("chat", "serves", created, ready(r.now)),
		pod("agent", "agent-1", created))
	r.states = []view.Target{
		{Name: "pod/ns/starts:8000/metrics", Kind: discovery.KindPod, Error: "connection refused"},
		{Name: "pod/ns/serves:8000/metrics", Kind: discovery.KindPod, Error: "connection refused"},
		{Name: "pod/ns/gone:8000/metrics", Kind: discovery.KindPod, Error: "connection refused"},
		{Name: "agent/ns/agent-1", Kind: discovery.KindAgent, Error: "connection refused"},
	}
	r.discovered.Store(&discovery.List{Origins: map[string]discovery.Origin{
		r.states[0].Name: {Pod: types.NamespacedName{Namespace: "ns", Name: "starts"}}, r.states[1].Name: {Pod: types.NamespacedName{Namespace: "ns", Name: "serves"}},
		r.states[2].Name: {Pod: types.NamespacedName{Namespace: "ns", Name: "gone"}}, r.states[3].Name: {Pod: types.NamespacedName{Namespace: "ns", Name: "agent-1"}},
	}})
	v := r.View()
	for i, want := range []struct {
		namespace string
		starting  bool
	}{{"ns", true}, {"ns", false}, {"ns", false}, {"", true}} {
		got := v.Targets[i]
		if got.Namespace != want.namespace || !got.Starting.IsZero() != want.starting || want.starting && !got.Starting.Equal(created) {
			t.Errorf("%s: namespace %q, starting since %v", got.Name, got.Namespace, got.Starting)
		}
	}
	if v.MaxAge <= 0 {
		t.Error("the view does not say when a value is old")
	}
}

// While nothing serves yet the page waits; it does not complain.
func TestStartingIsNoProblem(t *testing.T) {
	r := newRig(t, deployment("chat", 2))
	a := autoscaler("chat")
	seconds := int32(120)
	a.Spec.Startup = &v1alpha1.Startup{ExpectedSeconds: &seconds}
	first := r.now.Add(-40 * time.Second)
	r.pods.Pods = append(r.pods.Pods, pod("chat", "one", first.Add(10*time.Second)), pod("chat", "two", first))
	w := r.add(a)
	w.pass(r.now)
	got := r.View().Workloads[0]
	if got.Problem != "" || got.Waiting == "" || got.Ready {
		t.Errorf("problem %q, waiting for %q", got.Problem, got.Waiting)
	}
	if !got.StartingSince.Equal(first) || got.Startup != 2*time.Minute {
		t.Errorf("starting since %v, usually %v", got.StartingSince, got.Startup)
	}
	a.Spec.ScaleTargetRef.Name = "nope"
	w = r.add(a)
	w.pass(r.now)
	if got := r.View().Workloads[0]; got.Problem == "" || got.Waiting != "" || !got.StartingSince.IsZero() {
		t.Errorf("without a target: %+v", got)
	}
}

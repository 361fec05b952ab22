// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/stack"
)

// A StatefulSet follows a metric that its pods themselves expose.
func TestStatefulSetOnPodsMetric(t *testing.T) {
	const name, load = "advise", 1.9
	rig.Offer(name, 0.2)
	d := stack.Deployment(namespace, name, 1, time.Second)
	s := &appsv1.StatefulSet{
		ObjectMeta: d.ObjectMeta,
		Spec: appsv1.StatefulSetSpec{
			Replicas: d.Spec.Replicas, Selector: d.Spec.Selector, Template: d.Spec.Template,
			PodManagementPolicy: appsv1.ParallelPodManagement,
		},
	}
	rig.Create(t, s)
	port := intstr.FromString("http")
	rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) {
		a.Spec.ScaleTargetRef.Kind = "StatefulSet"
		a.Spec.Signals = []v1alpha1.Signal{{
			Pods:   &v1alpha1.PodsSignal{Metric: "vllm:num_requests_running", Port: &port},
			Target: &v1alpha1.Target{Value: resource.MustParse("8")}, // of 16 at once
		}}
	})
	replicas := func(what string, ok func(int32) bool) {
		t.Helper()
		stack.Eventually(t, func() error {
			if err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(s), s); err != nil {
				return err
			}
			if !ok(*s.Spec.Replicas) {
				return fmt.Errorf("%d replicas, want %s", *s.Spec.Replicas, what)
			}
			return nil
		})
	}
	rig.Offer(name, load)
	replicas("at least 3", func(n int32) bool { return n >= 3 })
	rig.Offer(name, 0.2)
	replicas("1", func(n int32) bool { return n == 1 })
}

// Any kind with a scale subresource can be scaled.
func TestCustomResource(t *testing.T) {
	const name = "advise"
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "fleets.test.gpupilot.dev"},
		"spec": map[string]any{
			"group": "test.gpupilot.dev", "scope": "Namespaced",
			"names": map[string]any{"plural": "fleets", "singular": "fleet", "kind": "Fleet", "listKind": "FleetList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
				"subresources": map[string]any{"scale": map[string]any{
					"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector",
				}},
			}},
		},
	}}
	rig.Create(t, crd)
	fleet := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "test.gpupilot.dev/v1", "kind": "Fleet",
		"metadata": map[string]any{"namespace": namespace, "name": name},
		"spec":     map[string]any{"replicas": int64(1)},
		"status":   map[string]any{"replicas": int64(1), "selector": "app=" + name},
	}}
	stack.Eventually(t, func() error { return rig.Client.Create(t.Context(), fleet) })
	t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), fleet) }) // its kind may have gone first
	rig.Offer(name, 0.95)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-0"}}
	template := stack.Deployment(namespace, name, 1, 0).Spec.Template
	pod.Labels, pod.Annotations, pod.Spec = template.Labels, template.Annotations, template.Spec
	rig.Create(t, pod)
	rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) {
		a.Spec.ScaleTargetRef = v1alpha1.CrossVersionObjectReference{APIVersion: "test.gpupilot.dev/v1", Kind: "Fleet", Name: name}
	})
	stack.Eventually(t, func() error {
		if err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(fleet), fleet); err != nil {
			return err
		}
		if n, _, _ := unstructured.NestedInt64(fleet.Object, "spec", "replicas"); n != 2 {
			return fmt.Errorf("%d replicas, want 2: %+v", n, rig.Status(t, name))
		}
		return nil
	})
}

// Asked to end, the controller gives its lease back, so that the next one need
// not wait for it to run out. One that had to be killed could not.
func TestControllerHandsOver(t *testing.T) {
	rig.StopController()
	var lease coordinationv1.Lease
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: stack.Namespace, Name: "gpupilot-controller"}, &lease); err != nil {
		t.Fatal(err)
	}
	if holder := lease.Spec.HolderIdentity; holder != nil && *holder != "" {
		t.Errorf("the controller has ended, and %s holds the lease", *holder)
	}
	if err := rig.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	stack.Leads(t, rig.ControllerURL, true)
}

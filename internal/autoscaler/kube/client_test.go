// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// An unreachable API server does not prevent the start.
func TestConnectSendsNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "x", "user": {}}],
		"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Connect(Config{Kubeconfig: file}); err != nil {
		t.Error(err)
	}
}

// A request that the API server never answers ends, of each client.
func TestRequestsTimeOut(t *testing.T) {
	end := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end }))
	t.Cleanup(func() { close(end); server.Close() })
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": [{"name": "x", "cluster": {"server": %q}}], "users": [{"name": "x", "user": {}}],
		"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}`, server.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Connect(Config{Kubeconfig: file, Timeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for name, ask := range map[string]func(context.Context) error{
		"Mapper": func(context.Context) error {
			_, err := c.Mapper.RESTMapping(schema.GroupKind{Group: "apps", Kind: "Deployment"})
			return err
		},
		"Live":  func(ctx context.Context) error { return c.Live.List(ctx, &corev1.NodeList{}) },
		"Scale": func(ctx context.Context) error { return c.ScaleLive.List(ctx, &corev1.NodeList{}) },
		"Set": func(ctx context.Context) error {
			_, err := c.Set.EventsV1().Events("ns").Create(ctx, &eventsv1.Event{}, metav1.CreateOptions{})
			return err
		},
		"Leases": func(ctx context.Context) error {
			_, err := c.Leases.Leases("ns").Get(ctx, "x", metav1.GetOptions{})
			return err
		},
	} {
		if text := fmt.Sprint(ask(t.Context())); !strings.Contains(text, "deadline exceeded") && !strings.Contains(text, "Timeout exceeded") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// Of each object little is cached.
func TestSlim(t *testing.T) {
	managed := []metav1.ManagedFieldsEntry{{Manager: "somebody"}}
	p, err := Slim(nil)(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", ManagedFields: managed}, Spec: corev1.PodSpec{ServiceAccountName: "s"}})
	if pod, ok := p.(*corev1.Pod); err != nil || !ok || pod.Name != "p" || pod.ManagedFields != nil || pod.Spec.ServiceAccountName != "" {
		t.Errorf("of a pod %+v, %v", p, err)
	}
	o, err := Slim(nil)(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d", ManagedFields: managed}, Spec: appsv1.DeploymentSpec{Replicas: new(int32), MinReadySeconds: 3}})
	if d, ok := o.(*appsv1.Deployment); err != nil || !ok || d.Name != "d" || d.ManagedFields != nil || d.Spec.Replicas == nil || d.Spec.MinReadySeconds != 0 {
		t.Errorf("of a Deployment %+v, %v", o, err)
	}
	gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8"), "example.com/gpu": resource.MustParse("1"), "cpu": resource.MustParse("64")}
	n, err := Slim([]string{"example.com/gpu"})(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b", "karpenter.sh/nodepool": "gpu", "nvidia.com/gpu.product": "NVIDIA-H100"}},
		Status:     corev1.NodeStatus{Capacity: gpus, Conditions: []corev1.NodeCondition{{Type: "Ready"}, {Type: "GPUHealthy", Status: "False", Reason: "GPULost", LastTransitionTime: metav1.Time{Time: time.Unix(9, 0)}}}},
	})
	if node, ok := n.(*corev1.Node); err != nil || !ok || node.Name != "n" || len(node.Labels) != 2 || len(node.Status.Capacity) != 2 || len(node.Status.Conditions) != 1 || node.Status.Conditions[0].Reason != "GPULost" || node.Status.Conditions[0].LastTransitionTime.Unix() != 9 {
		t.Errorf("of a Node %+v, %v", n, err)
	}
	c, err := Slim(nil)(&resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: make([]resourcev1.DeviceRequest, 2)}},
		Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
			Results: []resourcev1.DeviceRequestAllocationResult{{Request: "r", Driver: "gpu.nvidia.com", Pool: "p", Device: "gpu-0"}},
		}}},
	})
	claim, ok := c.(*resourcev1.ResourceClaim)
	if err != nil || !ok || claim.Name != "c" || claim.Spec.Devices.Requests != nil || len(claim.Status.Allocation.Devices.Results) != 1 {
		t.Errorf("of a ResourceClaim %+v, %v", c, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lifecycle

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/stack"
)

// gone deletes an object and waits until it is gone.
func gone(t *testing.T, obj client.Object) {
	t.Helper()
	if err := rig.Client.Delete(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, func() error {
		err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(obj), obj)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(fmt.Errorf("%s is still there", obj.GetName()), err)
	})
}

// unregister deletes the APIServices of the metrics APIs, which the controller registers when it starts. Kubernetes deletes no
// namespace while one of its API groups does not answer, as soon as it has noticed that.
func unregister(t *testing.T) {
	t.Helper()
	services := &unstructured.UnstructuredList{}
	services.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIServiceList"})
	if err := rig.Client.List(t.Context(), services); err != nil {
		t.Fatal(err)
	}
	n := 0
	for i := range services.Items {
		s := &services.Items[i]
		if service, _, _ := unstructured.NestedMap(s.Object, "spec", "service"); service == nil {
			continue // the API server's own
		}
		if err := rig.Client.Delete(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n == 0 {
		t.Error("the controller has registered no API")
	}
}

// restored creates a GPUAutoscaler with onDelete: Restore that scales a workload of 2 to 4.
func restored(t *testing.T, ns, name string) *v1alpha1.GPUAutoscaler {
	t.Helper()
	a, four := stack.Autoscaler(name), int32(4)
	a.Namespace, a.Spec.MinReplicas, a.Spec.OnDelete = ns, &four, v1alpha1.OnDeleteRestore
	if err := rig.Client.Create(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	return a
}

// A deleted GPUAutoscaler leaves the replicas from before it. A deletion waits for no
// controller: without one, the replicas stay, and the namespace goes.
func TestOnDelete(t *testing.T) {
	const name = "hold"
	rig.Offer(name, 0.3)
	rig.Deploy(t, name, 2, time.Second)
	a := restored(t, namespace, name)
	rig.WantReplicas(t, name, "4", func(n int32) bool { return n == 4 })
	if b := rig.Status(t, name).ReplicasBefore; b == nil || b.Replicas != 2 {
		t.Fatalf("status.replicasBefore is %+v, want 2", b)
	}
	seen := rig.Record(t, name)
	gone(t, a)
	rig.WantReplicas(t, name, "2", func(n int32) bool { return n == 2 })
	for _, n := range seen.Values() {
		if n != 4 && n != 2 {
			t.Errorf("replicas went %v", seen.Values())
		}
	}

	a = restored(t, namespace, name)
	rig.WantReplicas(t, name, "4", func(n int32) bool { return n == 4 })
	other := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "leaves"}}
	if err := rig.Client.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if err := rig.Client.Create(t.Context(), stack.Deployment(other.Name, "web", 0, time.Second)); err != nil {
		t.Fatal(err)
	}
	restored(t, other.Name, "web")
	rig.KillController()
	gone(t, a)
	unregister(t)
	gone(t, other)
	if err := rig.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	stack.Leads(t, rig.ControllerURL, true)
	seen = rig.Record(t, name)
	rig.Scraped(t, 3)
	if n, err := rig.Replicas(t.Context(), namespace, name); err != nil || n != 4 || slices.ContainsFunc(seen.Values(), func(n int32) bool { return n != 4 }) {
		t.Errorf("replicas went %v, and are %d: %v", seen.Values(), n, err)
	}
}

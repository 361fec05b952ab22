// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/internal/autoscaler/index"
)

// The Deployment of a podFleet and its ReplicaSet.
const (
	benchDeployment   = "web"
	benchReplicaSet   = "web-6d4cf56db6"
	deploymentUID     = "5f0c8a1e-1111-4111-8111-000000000001"
	replicaSetUID     = "5f0c8a1e-1111-4111-8111-000000000002"
	deploymentMetrics = "/deployments.apps/" + benchDeployment + "/"
)

// controlledBy returns the owner reference of a controller.
func controlledBy(kind, name string, uid types.UID) []metav1.OwnerReference {
	yes := true
	return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: uid, Controller: &yes}}
}

// oneOfEach is an API server with one Deployment and one ReplicaSet.
type oneOfEach struct{ client.Reader }

// List implements client.Reader: every kind may be listed.
func (oneOfEach) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

func (oneOfEach) watch(_ context.Context, obj client.Object, h toolscache.ResourceEventHandler) error {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	m := metav1.ObjectMeta{Namespace: podNamespace, Labels: selector.MatchLabels}
	switch o := obj.(type) {
	case *appsv1.Deployment:
		o.ObjectMeta, o.Spec.Selector = m, selector
		o.Name, o.UID = benchDeployment, deploymentUID
	case *appsv1.ReplicaSet:
		o.ObjectMeta, o.Spec.Selector = m, selector
		o.Name, o.UID, o.OwnerReferences = benchReplicaSet, replicaSetUID, controlledBy("Deployment", benchDeployment, deploymentUID)
	default:
		return nil
	}
	h.OnAdd(obj, true)
	return nil
}

// newBenchObjects makes the index of the fleet's Deployment.
func newBenchObjects() *index.Objects {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"Deployment", "ReplicaSet"} {
		mapper.Add(appsv1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	server := oneOfEach{}
	return index.NewObjects(index.ObjectsConfig{Watch: server.watch, Live: server, Mapper: mapper})
}

// podsOf returns the function that finds the pods of the fleet's workloads.
func (f *podFleet) podsOf(o *index.Objects) func(context.Context, []*corev1.Pod, schema.GroupResource, string, string) ([]*corev1.Pod, error) {
	return func(ctx context.Context, dst []*corev1.Pod, r schema.GroupResource, namespace, name string) ([]*corev1.Pod, error) {
		return o.PodsOf(ctx, f.pods, dst, r, types.NamespacedName{Namespace: namespace, Name: name})
	}
}

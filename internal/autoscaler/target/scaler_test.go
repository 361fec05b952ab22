// SPDX-License-Identifier: Apache-2.0

package target

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

// lagging is a client whose cache does not have the scales that are written: the API
// server accepts each with the version.
func lagging(t *testing.T, version string) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(appsv1.AddToScheme(scheme), autoscalingv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	replicas := int32(2)
	web := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(web).WithInterceptorFuncs(interceptor.Funcs{
		SubResourceUpdate: func(_ context.Context, _ client.Client, _ string, _ client.Object, opts ...client.SubResourceUpdateOption) error {
			var o client.SubResourceUpdateOptions
			o.ApplyOptions(opts)
			o.SubResourceBody.SetResourceVersion(version)
			return nil
		},
	}).Build()
}

// An own write counts until the cache has it, or the target is forgotten.
func TestOwnWritesPrecedeTheCache(t *testing.T) {
	c := lagging(t, "1000") // the fake's objects begin at 999
	s := NewScaler(c)
	ref := v1alpha1.CrossVersionObjectReference{Kind: "deployment", Name: "web"}
	f := func(what string, want int32) Target {
		t.Helper()
		got, err := s.Resolve(t.Context(), "ns", ref, false)
		if err != nil || got.Replicas != want || got.String() != "Deployment web" {
			t.Errorf("%s: %s with %d replicas, %v; want %d", what, &got, got.Replicas, err, want)
		}
		return got
	}
	web := f("as read", 2)
	write := func() {
		t.Helper()
		if err := s.Write(t.Context(), &web, 5); err != nil {
			t.Fatal(err)
		}
	}
	write()
	f("as written", 5)
	s.Forget(web.Key)
	f("forgotten", 2)
	write()
	var d appsv1.Deployment
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "web"}, &d); err != nil {
		t.Fatal(err)
	}
	*d.Spec.Replicas = 3
	if err := c.Update(t.Context(), &d); err != nil {
		t.Fatal(err)
	}
	f("changed by another since", 3)
}

// Etcd was restored from a backup: all versions are older than that of the last own
// write, also those of later changes.
func TestOwnWriteEndsWhenVersionsGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewScaler(lagging(t, "5000"))
		ref := v1alpha1.CrossVersionObjectReference{Kind: "Deployment", Name: "web"}
		replicas := func() int32 {
			t.Helper()
			got, err := s.Resolve(t.Context(), "ns", ref, false)
			if err != nil {
				t.Fatal(err)
			}
			if got.Replicas == 5 {
				return 5
			}
			if got.version != "999" {
				t.Errorf("the version is %s, want the cache's", got.version)
			}
			return got.Replicas
		}
		web, err := s.Resolve(t.Context(), "ns", ref, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Write(t.Context(), &web, 5); err != nil {
			t.Fatal(err)
		}
		time.Sleep(cacheLag)
		if n := replicas(); n != 5 {
			t.Errorf("%d replicas within the time that a cache may lag, want 5", n)
		}
		time.Sleep(time.Second)
		if n := replicas(); n != 2 {
			t.Errorf("%d replicas after it, want the cache's 2", n)
		}
	})
}

// The replicas of a LeaderWorkerSet are groups, whose templates are read when it changed.
func TestGroupsOfALeaderWorkerSet(t *testing.T) { synctest.Test(t, testGroups) }

func testGroups(t *testing.T) {
	set := map[string]any{"spec": map[string]any{"leaderWorkerTemplate": map[string]any{
		"size": int64(4), "workerTemplate": map[string]any{"spec": map[string]any{"schedulerName": "workers"}},
	}}}
	version, reads, forbidden := "7", 0, false
	c := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		SubResourceGet: func(_ context.Context, _ client.Client, _ string, _, body client.Object, _ ...client.SubResourceGetOption) error {
			u := body.(*unstructured.Unstructured)
			u.SetResourceVersion(version)
			return errors.Join(unstructured.SetNestedField(u.Object, int64(2), "spec", "replicas"), unstructured.SetNestedField(u.Object, "a=b", "status", "selector"))
		},
		Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			reads++
			if forbidden {
				return apierrors.NewForbidden(schema.GroupResource{}, key.Name, nil)
			}
			o.(*unstructured.Unstructured).Object = runtime.DeepCopyJSON(set)
			return nil
		},
	}).Build()
	s := NewScaler(c)
	f := func(what, leader, workers string, num int32, wantReads int) {
		t.Helper()
		ref := v1alpha1.CrossVersionObjectReference{APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "LeaderWorkerSet", Name: "big"}
		time.Sleep(readTTL)
		got, err := s.Resolve(t.Context(), "ns", ref, false)
		if err != nil || got.Replicas != 2 || got.Template.NumWorkers != num || reads != wantReads {
			t.Errorf("%s: %+v, %v after %d reads", what, got, err, reads)
		}
		name := func(spec *corev1.PodSpec) string {
			if spec == nil {
				return "none"
			}
			return spec.SchedulerName
		}
		if name(got.Template.Pods) != leader || name(got.Template.Workers) != workers {
			t.Errorf("%s: templates %s and %s", what, name(got.Template.Pods), name(got.Template.Workers))
		}
	}
	f("one template", "workers", "workers", 3, 1)
	f("unchanged", "workers", "workers", 3, 1)
	version = "8"
	groups := set["spec"].(map[string]any)["leaderWorkerTemplate"].(map[string]any)
	groups["leaderTemplate"] = map[string]any{"spec": map[string]any{"schedulerName": "leader"}}
	f("two templates", "leader", "workers", 3, 2)
	version, groups["size"] = "9", int64(1)
	f("a leader alone", "leader", "none", 0, 3)
	version, forbidden, groups["size"] = "10", true, int64(4)
	f("it cannot be read", "leader", "none", 0, 4)
	forbidden = false
	f("it can be read again", "leader", "workers", 3, 5)
}

func TestTargetsThatDoNotExist(t *testing.T) {
	s := NewScaler(lagging(t, "1"))
	for what, ref := range map[string]v1alpha1.CrossVersionObjectReference{
		"no such name": {APIVersion: "apps/v1", Kind: "Deployment", Name: "none"},
		"no version":   {Kind: "Rollout", Name: "web"},
		"two slashes":  {APIVersion: "a/b/c", Kind: "Deployment", Name: "web"},
	} {
		if _, err := s.Resolve(t.Context(), "ns", ref, false); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := s.PodsOf(t.Context(), "ns", ref); !errors.Is(err, usage.ErrUnknownWorkload) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// What is in no namespace belongs to no tenant: it is not read for one.
func TestClusterScopedTargets(t *testing.T) {
	pool := schema.GroupVersionKind{Group: "karpenter.sh", Version: "v1", Kind: "NodePool"}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(pool, meta.RESTScopeRoot)
	reads := 0
	c := fake.NewClientBuilder().WithRESTMapper(mapper).WithInterceptorFuncs(interceptor.Funcs{
		SubResourceGet: func(context.Context, client.Client, string, client.Object, client.Object, ...client.SubResourceGetOption) error {
			reads++
			return nil
		},
	}).Build()
	ref := v1alpha1.CrossVersionObjectReference{APIVersion: "karpenter.sh/v1", Kind: "NodePool", Name: "gpus"}
	for _, live := range []bool{false, true} {
		if _, err := NewScaler(c).Resolve(t.Context(), "tenant", ref, live); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "kind NodePool of karpenter.sh/v1 is cluster-scoped") || reads > 0 {
			t.Errorf("live %v: %v, %d reads", live, err, reads)
		}
	}
}

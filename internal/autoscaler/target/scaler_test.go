// SPDX-License-Identifier: Apache-2.0

package target

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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

// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Must ends a test at an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Create creates an object. The test's end deletes it.
func (s *Stack) Create(t testing.TB, o client.Object) {
	t.Helper()
	if err := s.Client.Create(t.Context(), o); err != nil {
		t.Fatalf("create %T %s: %v", o, o.GetName(), err)
	}
	t.Cleanup(func() {
		if err := s.Client.Delete(context.Background(), o, client.PropagationPolicy("Background")); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
}

// MustApply is kubectl apply -f -, see [Stack.Apply]. Pods wait for their namespace's service account.
func (s *Stack) MustApply(t testing.TB, manifest string) {
	t.Helper()
	Eventually(t, func() error { return s.Apply(t.Context(), []byte(manifest)) })
}

// MustApplyFile is kubectl apply -f PATH.
func (s *Stack) MustApplyFile(t testing.TB, path string) {
	t.Helper()
	manifest, err := os.ReadFile(path)
	Must(t, err)
	s.MustApply(t, string(manifest))
}

// Raw is kubectl get --raw PATH. An error has the answer.
func (s *Stack) Raw(ctx context.Context, path string) (string, error) {
	set, err := kubernetes.NewForConfig(s.REST)
	if err != nil {
		return "", err
	}
	b, err := set.Discovery().RESTClient().Get().RequestURI(path).DoRaw(ctx)
	if err != nil {
		err = fmt.Errorf("GET %s: %w: %.400s", path, err, b)
	}
	return string(b), err
}

// AwaitReplicas waits until spec.replicas of a Deployment is as wanted.
func (s *Stack) AwaitReplicas(t testing.TB, namespace, name string, want int32) {
	t.Helper()
	Eventually(t, func() error {
		got, err := s.Replicas(t.Context(), namespace, name)
		if err == nil && got != want {
			err = fmt.Errorf("%s has %d replicas, want %d", name, got, want)
		}
		return err
	})
}

// Logged returns nil if the controller's log has a text.
func (s *Stack) Logged(text string) error {
	log, err := os.ReadFile(s.ControllerLog())
	if err == nil && !strings.Contains(string(log), text) {
		err = fmt.Errorf("the controller's log does not say %q", text)
	}
	return err
}

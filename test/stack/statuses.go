// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// Statuses are all statuses of a GPUAutoscaler: a state that lasts for a moment is among them, however late a test looks.
type Statuses struct {
	mu  sync.Mutex
	all []v1alpha1.GPUAutoscalerStatus
}

// Statuses notes the statuses of a GPUAutoscaler from now until the test's end.
func (s *Stack) Statuses(t *testing.T, name string) *Statuses {
	t.Helper()
	list := &v1alpha1.GPUAutoscalerList{}
	is := []client.ListOption{client.InNamespace(WorkloadNamespace), client.MatchingFields{"metadata.name": name}}
	seen := &Statuses{}
	s.Follow(t, list, func(e watch.Event) {
		if a, ok := e.Object.(*v1alpha1.GPUAutoscaler); ok && e.Type != watch.Deleted {
			seen.mu.Lock()
			defer seen.mu.Unlock()
			seen.all = append(seen.all, a.Status)
		}
	}, is...)
	return seen
}

// Await waits for a status that check returns nil for, and returns it. That status and those before it are forgotten.
func (s *Statuses) Await(t *testing.T, check func(v1alpha1.GPUAutoscalerStatus) error) (found v1alpha1.GPUAutoscalerStatus) {
	t.Helper()
	Eventually(t, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		err := fmt.Errorf("it has no status")
		for i, st := range s.all {
			if err = check(st); err == nil {
				found, s.all = st, slices.Clone(s.all[i+1:])
				return nil
			}
		}
		return err
	})
	return found
}

// AwaitReason waits for a status with a condition of a reason.
func (s *Statuses) AwaitReason(t *testing.T, condition string, want metav1.ConditionStatus, reason string) v1alpha1.GPUAutoscalerStatus {
	t.Helper()
	return s.Await(t, func(st v1alpha1.GPUAutoscalerStatus) error {
		if c := meta.FindStatusCondition(st.Conditions, condition); c == nil || c.Status != want || c.Reason != reason {
			return fmt.Errorf("condition %+v, want %s %s with %s", c, condition, want, reason)
		}
		return nil
	})
}

// Follow watches objects until the test's end, and begins again when the API server ends the watch.
func (s *Stack) Follow(t *testing.T, list client.ObjectList, see func(watch.Event), opts ...client.ListOption) {
	t.Helper()
	ctx := t.Context() // it ends before the cleanup
	w, err := s.Client.Watch(ctx, list, opts...)
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			for e := range w.ResultChan() {
				see(e)
			}
			w.Stop()
			for w, err = s.Client.Watch(ctx, list, opts...); err != nil; w, err = s.Client.Watch(ctx, list, opts...) {
				select {
				case <-ctx.Done():
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		}
		w.Stop()
	})
	t.Cleanup(done.Wait)
}

// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/test/stack"
)

// leaving returns the names of a workload's pods that a scale-down has taken out of the
// endpoints, and how many of them are ready, so that endpoints have them.
func leaving(t *testing.T, name string) (names []string, ready int) {
	t.Helper()
	var pods corev1.PodList
	if err := rig.Client.List(t.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels{"app": name}); err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		if c := replica.Gate(&pods.Items[i]); c != nil && c.Status == corev1.ConditionFalse && pods.Items[i].DeletionTimestamp == nil {
			names = append(names, pods.Items[i].Name)
		}
		if replica.IsReady(&pods.Items[i]) {
			ready++
		}
	}
	return names, ready
}

// gates are the pods of a workload that became unready by their readiness gate, with the time of that.
type gates struct {
	mu  sync.Mutex
	all map[string]time.Time
}

func recordGates(t *testing.T, name string) *gates {
	t.Helper()
	g := &gates{all: map[string]time.Time{}}
	rig.Follow(t, &corev1.PodList{}, func(e watch.Event) {
		p, ok := e.Object.(*corev1.Pod)
		if !ok || p.DeletionTimestamp != nil {
			return
		}
		if c := replica.Gate(p); c != nil && c.Status == corev1.ConditionFalse && !replica.IsReady(p) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.all[p.Name] = c.LastTransitionTime.Time
		}
	}, client.InNamespace(namespace), client.MatchingLabels{"app": name})
	return g
}

// closed waits for a closed gate.
func (g *gates) closed(t *testing.T) (all map[string]time.Time) {
	t.Helper()
	stack.Eventually(t, func() error {
		g.mu.Lock()
		defer g.mu.Unlock()
		if all = maps.Clone(g.all); len(all) == 0 {
			return errors.New("none leaves")
		}
		return nil
	})
	return all
}

// On a real control plane, with the rights of deploy/: pods with the readiness gate become
// ready without a GPUAutoscaler. A PodDisruptionBudget holds a scale-down. Then the replica
// becomes unready while spec.replicas stays, and is the one that is removed.
// A load that returns takes the next one back.
func TestDrain(t *testing.T) {
	const name, seconds = "drain", 8
	rig.Offer(name, 2.2)
	d := stack.Deployment(namespace, name, 4, time.Second)
	d.Spec.Template.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: v1alpha1.ReadinessGate}}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "keep-four"}, Spec: policyv1.PodDisruptionBudgetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}, MinAvailable: new(intstr.FromInt(4)),
	}}
	if err := rig.Client.Create(t.Context(), budget); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), budget) })
	rig.DeployThat(t, d)
	rig.Spread(t, name, 4)
	rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) { a.Spec.Drain = &v1alpha1.Drain{MaxSeconds: seconds} })
	statuses, gates := rig.Statuses(t, name), recordGates(t, name)
	rig.Offer(name, 1.6)
	statuses.AwaitReason(t, v1alpha1.ConditionDraining, metav1.ConditionFalse, "PodDisruptionBudget")
	if names, ready := leaving(t, name); len(names) != 0 || ready != 4 {
		t.Errorf("%q leave although the budget allows none, %d are ready", names, ready)
	}
	if err := rig.Client.Delete(t.Context(), budget); err != nil {
		t.Fatal(err)
	}
	statuses.Await(t, func(st v1alpha1.GPUAutoscalerStatus) error {
		if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionDraining); c == nil || c.Reason != "Draining" || st.CurrentReplicas != 4 || st.DrainingReplicas != 1 {
			return fmt.Errorf("condition %+v, %d replicas, %d drain", c, st.CurrentReplicas, st.DrainingReplicas)
		}
		return nil
	})
	rig.WantReplicas(t, name, "3", func(n int32) bool { return n == 3 })
	removed := time.Now()
	closed := gates.closed(t)
	for pod, at := range closed {
		if took := removed.Sub(at); len(closed) != 1 || took < (seconds-1)*time.Second { // a condition's time is in whole seconds
			t.Errorf("%s removed after %v, before its deadline, although nothing counts its requests: %v", pod, took, closed)
		}
	}
	stack.Eventually(t, func() error {
		left, err := rig.ReadyPods(t.Context(), namespace, client.MatchingLabels{"app": name})
		if err == nil && (len(left) != 3 || slices.ContainsFunc(left, func(pod string) bool { return !closed[pod].IsZero() })) {
			err = fmt.Errorf("%q are left, and %v should be gone", left, closed)
		}
		return err
	})

	gates = recordGates(t, name)
	rig.Offer(name, 0.9)
	gates.closed(t)
	rig.Offer(name, 1.6)
	stack.Eventually(t, func() error {
		if names, ready := leaving(t, name); len(names) != 0 || ready != 3 {
			return fmt.Errorf("%q leave, %d are ready: %s", names, ready, rig.Status(t, name).LastDecision.Message)
		}
		return nil
	})
}

// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/test/scalerig"
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

// On a real control plane, with the rights of deploy/: pods with the readiness gate become
// ready without a GPUAutoscaler. A PodDisruptionBudget holds a scale-down. Then the replica
// becomes unready while spec.replicas stays, and is the one that is removed.
// A load that returns takes the next one back.
func TestDrain(t *testing.T) {
	const name = "drain"
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
	rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) { a.Spec.Drain = &v1alpha1.Drain{MaxSeconds: 8} })
	rig.Offer(name, 1.6)
	draining := func(want metav1.ConditionStatus, reason string) {
		t.Helper()
		scalerig.Eventually(t, func() error {
			c := meta.FindStatusCondition(rig.Status(t, name).Conditions, v1alpha1.ConditionDraining)
			if c == nil || c.Status != want || c.Reason != reason {
				return fmt.Errorf("condition %+v, want %s %s", c, want, reason)
			}
			return nil
		})
	}
	draining(metav1.ConditionFalse, "PodDisruptionBudget")
	if names, ready := leaving(t, name); len(names) != 0 || ready != 4 {
		t.Errorf("%q leave although the budget allows none, %d are ready", names, ready)
	}
	if err := rig.Client.Delete(t.Context(), budget); err != nil {
		t.Fatal(err)
	}
	var gone []string
	scalerig.Eventually(t, func() error {
		names, ready := leaving(t, name)
		if len(names) != 1 || ready != 3 {
			return fmt.Errorf("%q leave, %d are ready: %s", names, ready, rig.Status(t, name).LastDecision.Message)
		}
		gone = names
		return nil
	})
	began := time.Now()
	draining(metav1.ConditionTrue, "Draining")
	if st := rig.Status(t, name); st.CurrentReplicas != 4 || st.DrainingReplicas != 1 {
		t.Errorf("%d replicas, %d drain", st.CurrentReplicas, st.DrainingReplicas)
	}
	rig.WantReplicas(t, name, "3", func(n int32) bool { return n == 3 })
	if took := time.Since(began); took < 5*time.Second {
		t.Errorf("removed after %v, before its deadline, although nothing counts its requests", took)
	}
	scalerig.Eventually(t, func() error {
		left, err := rig.ReadyPods(t.Context(), namespace, client.MatchingLabels{"app": name})
		if err == nil && (len(left) != 3 || slices.Contains(left, gone[0])) {
			err = fmt.Errorf("%q are left, and %q should be gone", left, gone)
		}
		return err
	})

	rig.Offer(name, 0.9)
	scalerig.Eventually(t, func() error {
		if names, _ := leaving(t, name); len(names) == 0 {
			return fmt.Errorf("none leaves: %s", rig.Status(t, name).LastDecision.Message)
		}
		return nil
	})
	rig.Offer(name, 1.6)
	scalerig.Eventually(t, func() error {
		if names, ready := leaving(t, name); len(names) != 0 || ready != 3 {
			return fmt.Errorf("%q leave, %d are ready: %s", names, ready, rig.Status(t, name).LastDecision.Message)
		}
		return nil
	})
}

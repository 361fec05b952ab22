// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/stack"
)

// A workload that nobody uses is announced and removed, over a restart of the controller, stays
// removed, and comes back by hand.
func TestIdle(t *testing.T) {
	const name = "hold"
	rig.Offer(name, 0.3)
	rig.Deploy(t, name, 1, time.Second)
	rig.Spread(t, name, 1)
	rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) {
		a.Spec.Idle = &v1alpha1.Idle{After: metav1.Duration{Duration: 90 * time.Second}} // the controller takes a while to start
	})
	statuses := rig.Statuses(t, name)
	idle := func(status metav1.ConditionStatus, reason string) v1alpha1.GPUAutoscalerStatus {
		t.Helper()
		return statuses.AwaitReason(t, v1alpha1.ConditionIdle, status, reason)
	}
	idle(metav1.ConditionFalse, v1alpha1.ReasonIdleInUse)
	rig.Offer(name, 0)
	began := time.Now()
	seen := rig.Record(t, name)
	statuses.Await(t, func(st v1alpha1.GPUAutoscalerStatus) error { // its state is written every 30 s
		if st.Memory == nil || st.Memory.Time.Sub(began) < 10*time.Second {
			return fmt.Errorf("the state is of %+v", st.Memory)
		}
		return nil
	})
	rig.KillController()
	if err := rig.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	announced := idle(metav1.ConditionTrue, v1alpha1.ReasonIdleSoon).Idle.ScaleDownAt.Time
	rig.WantReplicas(t, name, "0", func(n int32) bool { return n == 0 })
	if took, early := time.Since(began), time.Until(announced); took < 80*time.Second || early > 2*time.Second {
		t.Errorf("removed after %v, %v before the time that was announced", took, early)
	}
	stack.Eventually(t, func() error { // what is recorded comes by a watch of its own
		if got := seen.Values(); !slices.Equal(got, []int32{1, 0}) {
			return fmt.Errorf("replicas went %v", got)
		}
		return nil
	})
	idle(metav1.ConditionTrue, v1alpha1.ReasonIdleDown)
	stack.Eventually(t, func() error {
		var events corev1.EventList
		if err := rig.Client.List(t.Context(), &events, client.InNamespace(namespace)); err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Type == corev1.EventTypeWarning && e.Reason == v1alpha1.ReasonIdleSoon && strings.Contains(e.Message, "0 replicas stay at")
		}) {
			return fmt.Errorf("no warning among %+v", events.Items)
		}
		return nil
	})
	stack.Eventually(t, func() error { // the decision after the one that scales knows that they are removed
		if r := rig.Status(t, name).Idle; r == nil || r.Removed == nil || r.Removed.From != 1 || len(r.Removed.Pods) != 1 {
			return fmt.Errorf("status %+v", r)
		}
		return nil
	})
	rig.KillController()
	if err := rig.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	stack.Leads(t, rig.ControllerURL, true)
	seen = rig.Record(t, name)
	rig.Decides(t, name, 5)
	if v := seen.Values(); !slices.Equal(v, []int32{0}) {
		t.Errorf("removed, the replicas went %v", v)
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := rig.Client.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, []byte(`{"spec": {"replicas": 1}}`))); err != nil {
		t.Fatal(err)
	}
	rig.Stays(t, name, 1, 5)
	idle(metav1.ConditionFalse, v1alpha1.ReasonIdleInUse)
}

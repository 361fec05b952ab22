// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// A workload that nobody uses is announced and removed, over a restart of the controller, stays
// removed, and comes back by hand.
func TestIdle(t *testing.T) {
	const name = "hold"
	offer(name, 0.3)
	deploy(t, name, 1, time.Second)
	spread(t, name, 1)
	autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) {
		a.Spec.Idle = &v1alpha1.Idle{After: metav1.Duration{Duration: time.Minute}}
	})
	stays(t, name, 1, 5*time.Second)
	offer(name, 0)
	began := time.Now()
	idle := func(reason string) {
		t.Helper()
		eventually(t, func() error {
			c := meta.FindStatusCondition(status(t, name).Conditions, v1alpha1.ConditionIdle)
			if c == nil || c.Reason != reason {
				return fmt.Errorf("condition %+v, want %s", c, reason)
			}
			return nil
		})
	}
	idle(v1alpha1.ReasonIdleInUse)
	stays(t, name, 1, 35*time.Second) // its state is written at least every 30 s
	rig.KillController()
	if err := rig.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	idle(v1alpha1.ReasonIdleSoon)
	at := status(t, name).Idle.ScaleDownAt
	wantReplicas(t, name, "0", func(n int32) bool { return n == 0 })
	if took, early := time.Since(began), time.Until(at.Time); took < 50*time.Second || early > 2*time.Second {
		t.Errorf("removed after %v, %v before the time that was announced", took, early)
	}
	idle(v1alpha1.ReasonIdleDown)
	var events corev1.EventList
	if err := rig.Client.List(t.Context(), &events, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	warned := false
	for i := range events.Items {
		e := &events.Items[i]
		warned = warned || e.Type == corev1.EventTypeWarning && e.Reason == v1alpha1.ReasonIdleSoon && strings.Contains(e.Message, "0 replicas stay at")
	}
	if r := status(t, name).Idle; !warned || r == nil || r.Removed == nil || r.Removed.From != 1 || len(r.Removed.Pods) != 1 {
		t.Errorf("warned: %v, status %+v", warned, r)
	}
	rig.KillController()
	if err := rig.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	leads(t, rig.ControllerURL, true)
	stays(t, name, 0, 5*time.Second)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := rig.Client.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, []byte(`{"spec": {"replicas": 1}}`))); err != nil {
		t.Fatal(err)
	}
	stays(t, name, 1, 5*time.Second)
	idle(v1alpha1.ReasonIdleInUse)
}

// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// A pod leaves only if it declares the readiness gate, and a scale-down has closed it.
func TestLeavingPods(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC))
	f := func(want scale.Phase, gated bool, status corev1.ConditionStatus, reason string) {
		t.Helper()
		pod := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue},
			{Type: v1alpha1.ReadinessGate, Status: status, Reason: reason, LastTransitionTime: at},
		}}}
		if gated {
			pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: v1alpha1.ReadinessGate}}
		}
		phase, since := PhaseOf(pod)
		if phase != want || want == scale.Leaving && !since.Equal(at.Time) {
			t.Errorf("gated %v, %s %s: phase %v since %v, want %v", gated, status, reason, phase, since, want)
		}
	}
	f(scale.Leaving, true, corev1.ConditionFalse, v1alpha1.ReasonDraining)
	f(scale.Serving, true, corev1.ConditionTrue, v1alpha1.ReasonInService)
	f(scale.Serving, true, corev1.ConditionFalse, "Maintenance")
	f(scale.Serving, false, corev1.ConditionFalse, v1alpha1.ReasonDraining)
}

func TestOrdinal(t *testing.T) {
	f := func(name, kind string, want int32, wantOK bool) {
		t.Helper()
		yes := true
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{Kind: kind, Name: "x", Controller: &yes}}}}
		if n, ok := Ordinal(pod); n != want || ok != wantOK {
			t.Errorf("%s of a %s: %d, %v", name, kind, n, ok)
		}
	}
	f("chat-0", "StatefulSet", 0, true)
	f("chat-v2-17", "StatefulSet", 17, true)
	f("chat-7", "ReplicaSet", 0, false)
	f("chat-x", "StatefulSet", 0, false)
	f("chat--1", "StatefulSet", 1, true)
	f("99999999999", "StatefulSet", 0, false)
}

func TestSleepOf(t *testing.T) {
	for command, want := range map[string]int64{"sleep 5": 5, "/bin/sleep 1m": 60, "sh -c sleep 3; kill 1; sleep 7": 7, "sleep": 0, "sleep x": 0, "sleeping 5": 0, "(sleep 2.5)": 2, "sleep -1": 0, "sleep 1e300": 0} {
		if got := sleepOf(command); got != want {
			t.Errorf("%q: %d, want %d", command, got, want)
		}
	}
}

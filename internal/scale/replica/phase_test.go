// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/test/podtest"
)

func at(seconds int) time.Time {
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(seconds) * time.Second)
}

func TestScheduledAt(t *testing.T) {
	f := func(what string, want time.Time, wantOK bool, change ...func(*corev1.Pod)) {
		t.Helper()
		if got, ok := ScheduledAt(podtest.Pod("a", "p", at(0), change...)); ok != wantOK || !got.Equal(want) {
			t.Errorf("%s: %v, %v, want %v, %v", what, got, ok, want, wantOK)
		}
	}
	f("new", time.Time{}, false)
	f("no node fits", time.Time{}, false, podtest.Condition(corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable, at(1)))
	f("ready", at(2), true, podtest.Ready(at(7)), podtest.Condition(corev1.PodScheduled, corev1.ConditionTrue, "", at(2)))
}

func TestPhaseOf(t *testing.T) {
	f := func(what string, want scale.Phase, since time.Time, change ...func(*corev1.Pod)) {
		t.Helper()
		phase, got := PhaseOf(podtest.Pod("a", "p", at(0), change...))
		if phase != want || !got.Equal(since) {
			t.Errorf("%s: phase %d since %v, want %d since %v", what, phase, got, want, since)
		}
	}
	scheduled := func(s int) func(*corev1.Pod) {
		return podtest.Condition(corev1.PodScheduled, corev1.ConditionTrue, "", at(s))
	}
	unready := func(s int) func(*corev1.Pod) {
		return podtest.Condition(corev1.PodReady, corev1.ConditionFalse, "ContainersNotReady", at(s))
	}
	deleted := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: at(9)} }

	f("new", scale.Starting, at(0))
	f("on a node", scale.Starting, at(2), scheduled(2), unready(2))
	f("ready", scale.Serving, at(7), scheduled(2), podtest.Ready(at(7)))
	f("ready, conditions the other way round", scale.Serving, at(7), podtest.Ready(at(7)), scheduled(2))
	f("no longer ready", scale.Starting, at(8), scheduled(2), unready(8))
	f("no node takes it", scale.Unschedulable, at(1), podtest.Condition(corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable, at(1)))
	f("held by a gate", scale.Unschedulable, at(1), podtest.Condition(corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonSchedulingGated, at(1)))
	f("the scheduler failed", scale.Starting, at(0), podtest.Condition(corev1.PodScheduled, corev1.ConditionFalse, "SchedulerError", at(1)))
	f("a node took it late", scale.Starting, at(600), scheduled(600), unready(600))
	f("deleted, still ready", scale.Terminating, at(9), podtest.Ready(at(7)), deleted)
	f("deleted before it ran", scale.Terminating, at(9), deleted)
}

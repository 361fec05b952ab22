// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/podtest"
)

func TestStartup(t *testing.T) {
	var s Startup
	see := func(pods ...*corev1.Pod) { s.Observe(pods) }
	unready := func(sec int) func(*corev1.Pod) {
		return podtest.Condition(corev1.PodReady, corev1.ConditionFalse, "", at(sec))
	}
	scheduled := func(sec int) func(*corev1.Pod) {
		return podtest.Condition(corev1.PodScheduled, corev1.ConditionTrue, "", at(sec))
	}
	if s.Learned() != nil {
		t.Error("learned from nothing")
	}
	see(podtest.Pod("a", "old", at(0), podtest.Ready(at(100)))) // ready before we came: how long it took is not known
	see(podtest.Pod("a", "x", at(0)), podtest.Pod("a", "stuck", at(0), podtest.Condition(corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable, at(1))))
	see(podtest.Pod("a", "x", at(0), podtest.Ready(at(40))), podtest.Pod("a", "stuck", at(0), scheduled(500), unready(500)))
	see(podtest.Pod("a", "x", at(0), podtest.Ready(at(40))), podtest.Pod("a", "stuck", at(0), scheduled(500), podtest.Ready(at(560))))
	if diff := cmp.Diff(&v1alpha1.LearnedStartup{P50Seconds: 40, P75Seconds: 60, P95Seconds: 60, Samples: 2}, s.Learned()); diff != "" {
		t.Errorf("after starts of 40 s and, once a node was there, 60 s: %s", diff)
	}
	// A flap is no start.
	see(podtest.Pod("a", "x", at(0), scheduled(0), unready(4000)))
	see(podtest.Pod("a", "x", at(0), scheduled(0), podtest.Ready(at(4100))))
	if n := s.Learned().Samples; n != 2 {
		t.Errorf("%d samples, want 2: a flap counted as a start", n)
	}
	see()
	if len(s.waiting)+len(s.unschedulable) != 0 {
		t.Errorf("remembers pods that are gone: %v %v", s.waiting, s.unschedulable)
	}
	for i := range 50 {
		s.starts.Add(time.Duration(i) * time.Second)
	}
	if got := s.Typical(); got != 44*time.Second {
		t.Errorf("typical: %v", got)
	}
	if diff := cmp.Diff(&v1alpha1.LearnedStartup{P50Seconds: 39, P75Seconds: 44, P95Seconds: 48, Samples: 20}, s.Learned()); diff != "" {
		t.Errorf("after many: %s", diff)
	}
}

func TestStartupSurvivesARestart(t *testing.T) {
	for _, want := range []v1alpha1.LearnedStartup{
		{P50Seconds: 30, P75Seconds: 50, P95Seconds: 90, Samples: 20},
		{P50Seconds: 30, P75Seconds: 50, P95Seconds: 90, Samples: 5},
		{P50Seconds: 30, P75Seconds: 90, P95Seconds: 90, Samples: 2},
		{P50Seconds: 30, P75Seconds: 30, P95Seconds: 30, Samples: 1},
	} {
		var s Startup
		s.Restore(&want)
		if diff := cmp.Diff(&want, s.Learned()); diff != "" {
			t.Error(diff)
		}
	}
	var old Startup
	old.Restore(&v1alpha1.LearnedStartup{P50Seconds: 30, P95Seconds: 90, Samples: 2}) // by a version that stored no p75
	if got := old.Learned(); got.P50Seconds != 30 || got.P95Seconds != 90 {
		t.Errorf("without a p75: %+v", got)
	}
	var s Startup
	s.Restore(nil)
	if s.Learned() != nil {
		t.Error("learned from nothing")
	}
}

func TestStartupNeedsItsOwnPods(t *testing.T) {
	var s Startup
	first, second := podtest.Pod("a", "web-0", at(0)), podtest.Pod("a", "web-0", at(100), podtest.Ready(at(130)))
	second.UID = types.UID("another")
	s.Observe([]*corev1.Pod{first})
	s.Observe([]*corev1.Pod{second})
	if s.Learned() != nil {
		t.Error("took a later pod of the same name for the first one")
	}
}

func TestImplausibleStartupsAreNotRestored(t *testing.T) {
	f := func(l v1alpha1.LearnedStartup, want bool) {
		t.Helper()
		var s Startup
		s.Restore(&l)
		got := s.Learned()
		if (got != nil) != want {
			t.Errorf("%+v: restored as %+v", l, got)
		}
	}
	f(v1alpha1.LearnedStartup{P50Seconds: 40, P75Seconds: 60, P95Seconds: 90, Samples: 7}, true)
	f(v1alpha1.LearnedStartup{P50Seconds: 3600, P95Seconds: 3600, Samples: 2_000_000_000}, true)
	f(v1alpha1.LearnedStartup{P50Seconds: 40, P75Seconds: 60, P95Seconds: 2_000_000_000, Samples: 7}, false)
	f(v1alpha1.LearnedStartup{P50Seconds: 40, P75Seconds: 60, P95Seconds: 3601, Samples: 7}, false)
	f(v1alpha1.LearnedStartup{P50Seconds: -5, P95Seconds: 90, Samples: 7}, false)
	f(v1alpha1.LearnedStartup{P50Seconds: 40, P75Seconds: 60, P95Seconds: -90, Samples: 7}, false)
	f(v1alpha1.LearnedStartup{P50Seconds: 400, P95Seconds: 90, Samples: 7}, false)
	f(v1alpha1.LearnedStartup{P50Seconds: 40, P75Seconds: 60, P95Seconds: 90, Samples: -1}, false)
}

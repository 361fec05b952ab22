// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

func TestExplain(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 10, 0, time.UTC)
	a := &v1alpha1.GPUAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "chat"}}
	a.Spec.ScaleTargetRef = v1alpha1.CrossVersionObjectReference{Kind: "Deployment", Name: "chat"}
	f := func(want ...string) {
		t.Helper()
		var out strings.Builder
		explain(&out, a, now)
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("no %q in:\n%s", w, out.String())
			}
		}
	}
	f("nothing decided yet", "llm/chat scales Deployment chat")
	a.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "False", Reason: "TargetNotFound", Message: "no Deployment chat"}}
	a.Status.LastDecision = &v1alpha1.DecisionStatus{
		Time: metav1.NewMicroTime(now.Add(-4 * time.Second)), Reason: "Demand",
		Steps:  []v1alpha1.StepStatus{{Rule: "Demand", Before: 2, After: 4, Message: "because"}},
		Inputs: []v1alpha1.InputStatus{{Signal: "Utilization", Value: "97", Unit: "%", Target: "60", Replicas: 2, AgeMilliseconds: 120}, {Signal: "queue", Target: "4"}},
	}
	f("decided 4s ago, Demand", "2 → 4", "because", "input Utilization: 97 %, 120 ms old, from 2", "input queue: not readable", "no Deployment chat")
}

func TestBadArguments(t *testing.T) {
	var out strings.Builder
	for _, args := range [][]string{{"explain", "chat"}, {"explain", "/chat"}, {"nope"}} {
		if err := run(t.Context(), args, &out); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}

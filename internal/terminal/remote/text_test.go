// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"io"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

func TestWrite(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 10, 0, time.UTC)
	a := &v1alpha1.GPUAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "chat"}}
	a.Spec.ScaleTargetRef = v1alpha1.CrossVersionObjectReference{Kind: "Deployment", Name: "chat"}
	f := func(want ...string) {
		t.Helper()
		var out strings.Builder
		Write(&out, a, now)
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("no %q in:\n%s", w, out.String())
			}
		}
	}
	f("nothing decided yet", "llm/chat scales Deployment chat")
	a.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "False", Reason: "TargetNotFound", Message: "no Deployment chat"}}
	a.Status.Pending = []v1alpha1.PendingStatus{{Reason: "Unschedulable", Replicas: 2, Message: "3 Insufficient nvidia.com/gpu"}}
	f("2 held up by Unschedulable: 3 Insufficient nvidia.com/gpu")
	a.Status.LastDecision = &v1alpha1.DecisionStatus{
		Time: metav1.NewMicroTime(now.Add(-4 * time.Second)), Reason: "Demand",
		Steps:  []v1alpha1.StepStatus{{Rule: "Demand", Before: 2, After: 4, Message: "because"}},
		Inputs: []v1alpha1.InputStatus{{Signal: "Utilization", Value: "97", Unit: "%", Target: "60", Replicas: 2, AgeMilliseconds: 120}, {Signal: "queue", Target: "4"}},
	}
	f("decided 4s ago, Demand", "2 → 4", "because", "input Utilization: 97 %, 120 ms old, from 2 (target 60 %)\n", "input queue: not readable (target 4)", "no Deployment chat")
	a.Status.LastDecision.Inputs[0].Deciding = true
	a.Status.Conditions = append(a.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionConsistent, Status: "False", Reason: "DeviceUtilizationBesideRequests", Message: "remove Utilization",
	})
	f("from 2 (target 60 %), decides\n", "input queue: not readable (target 4)\n", "SignalsConsistent is False (DeviceUtilizationBesideRequests): remove Utilization")
}

// Who sets the replicas is said, if it is not the controller.
func TestWriteSaysWhoSetsTheReplicas(t *testing.T) {
	a := &v1alpha1.GPUAutoscaler{}
	f := func(actuation v1alpha1.Actuation, hpa string, want string) {
		t.Helper()
		a.Spec.Actuation, a.Status.HPA = actuation, nil
		if hpa != "" {
			a.Status.HPA = &v1alpha1.OwnedHPA{Name: hpa, UID: "1"}
		}
		var out strings.Builder
		Write(&out, a, time.Now())
		if got := out.String(); want == "" && strings.Contains(got, "actuation") || !strings.Contains(got, want) {
			t.Errorf("%s %s: no %q in:\n%s", actuation, hpa, want, got)
		}
	}
	f("", "", "")
	f(v1alpha1.ActuationScale, "", "")
	f(v1alpha1.ActuationAdvise, "", "\n  decisions are reported, and not written (actuation: Advise)\n")
	f(v1alpha1.ActuationHPA, "", "\n  no HorizontalPodAutoscaler of this object exists yet (actuation: HPA)\n")
	f(v1alpha1.ActuationHPA, "gpupilot-chat", "\n  HorizontalPodAutoscaler gpupilot-chat sets the desired replicas at its next sync (actuation: HPA)\n")
}

// What lasts is said: overrides, drains, rollouts, idleness and pairs. So is what a deletion does.
func TestWriteSaysWhatLasts(t *testing.T) {
	a := &v1alpha1.GPUAutoscaler{}
	f := func(want string) {
		t.Helper()
		var out strings.Builder
		if Write(&out, a, time.Now()); !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	for _, c := range []metav1.Condition{
		{Type: v1alpha1.ConditionOverridden, Status: "True", Reason: "Overridden", Message: "6 replicas until 18:00 (incident 4711)"},
		{Type: v1alpha1.ConditionDraining, Status: "True", Reason: "Draining", Message: "1 replica leaves"},
		{Type: v1alpha1.ConditionDraining, Status: "False", Reason: "NoReadinessGate", Message: "the pods declare no gate"},
		{Type: v1alpha1.ConditionRollout, Status: "True", Reason: "Rollout", Message: "2 of 4 replicas are new"},
		{Type: v1alpha1.ConditionIdle, Status: "True", Reason: v1alpha1.ReasonIdleSoon, Message: "0 replicas stay at 16:40"},
		{Type: v1alpha1.ConditionPaired, Status: "False", Reason: v1alpha1.ReasonPairNotFound, Message: "no GPUAutoscaler decode"},
		{Type: v1alpha1.ConditionScalingLimited, Status: "True", Reason: "BudgetLimit", Message: "the budget is 64 GPUs"},
		{Type: v1alpha1.ConditionSignals, Status: "True", Reason: "Readable", Message: "every signal can be read: query q: 0/0, there are no requests: it counts as 0"},
	} {
		a.Status.Conditions = []metav1.Condition{c}
		f("\n  " + c.Type + " is " + string(c.Status) + " (" + c.Reason + "): " + c.Message + "\n")
	}
	a.Spec.OnDelete, a.Status.ReplicasBefore = v1alpha1.OnDeleteRestore, &v1alpha1.ReplicasBefore{Target: "Deployment llm/chat", Replicas: 3}
	f("\n  when it is deleted, Deployment llm/chat gets 3 replicas again, as before it\n")
	a.Status.ReplicasBefore = nil
	f("\n  when it is deleted, the replicas stay: those from before it are not recorded (onDelete: Restore)\n")
}

// decided is a GPUAutoscaler with a decision of five replicas.
func decided() *v1alpha1.GPUAutoscaler {
	now := metav1.NewMicroTime(time.Date(2026, 1, 1, 0, 0, 10, 0, time.UTC))
	a := &v1alpha1.GPUAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "chat"}}
	a.Spec = v1alpha1.GPUAutoscalerSpec{
		MaxReplicas: 12, Signals: []v1alpha1.Signal{{
			Pods: &v1alpha1.PodsSignal{Metric: "vllm:num_requests_running"}, Target: &v1alpha1.Target{Value: resource.MustParse("8")},
		}},
	}
	a.Status = v1alpha1.GPUAutoscalerStatus{
		CurrentReplicas: 5, ServingReplicas: 5, DesiredReplicas: new(int32(5)),
		Memory: &v1alpha1.Memory{Time: now, State: apiruntime.RawExtension{Raw: []byte(`{"since":"2025-12-31T00:00:00Z","replicas":5,"serving":5,"wants":[{"at":"2026-01-01T00:00:10Z","low":5,"high":5}]}`)}},
		LastDecision: &v1alpha1.DecisionStatus{
			Time: now, Reason: "Demand", Inputs: []v1alpha1.InputStatus{{Signal: "vllm:num_requests_running", Value: "7.2", Target: "8", Replicas: 5}},
		},
	}
	return a
}

// A reason that two conditions have is said once, and no signal's change is looked for where none has a value.
func TestWriteSaysItOnce(t *testing.T) {
	a := decided()
	a.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionReady, Status: "False", Reason: "InvalidSpec", Message: "spec.signals: Required value"},
		{Type: v1alpha1.ConditionAbleToScale, Status: "False", Reason: "InvalidSpec", Message: "spec.signals: Required value"},
	}
	a.Status.LastDecision.Inputs[0].Value, a.Status.LastDecision.Inputs[0].Replicas = "", 0
	var out strings.Builder
	Write(&out, a, time.Now())
	if got := out.String(); strings.Count(got, "spec.signals") != 1 || !strings.Contains(got, "\nno signal has a value now") || strings.Contains(got, "single signal") {
		t.Error(got)
	}
}

func TestWriteChanges(t *testing.T) {
	a := decided()
	var out strings.Builder
	writeChanges(&out, a)
	for _, want := range []string{"6 replicas if vllm:num_requests_running is above ", "(now 7.2)", " if vllm:num_requests_running is below ", " min (now 7.2)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	a.Status.LastDecision.Inputs = nil
	out.Reset()
	if writeChanges(&out, a); !strings.Contains(out.String(), "cannot determine") {
		t.Errorf("without inputs:\n%s", out.String())
	}
}

// numbers calls f with each number below v, and its path, where pointers are set and lists have entries.
func numbers(v reflect.Value, path string, f func(path string, v reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			numbers(v.Elem(), path, f)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				numbers(v.Field(i), path+"."+v.Type().Field(i).Name, f)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			numbers(v.Index(i), path, f)
		}
	case reflect.Int32, reflect.Int64:
		f(path, v)
	}
}

// Whatever number is stored in an object, what it costs to explain it is bounded.
func TestStoredNumbersAreNoCost(t *testing.T) {
	cost := func(a *v1alpha1.GPUAutoscaler) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		Write(io.Discard, a, time.Date(2026, 1, 1, 0, 0, 12, 0, time.UTC))
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	all := 0
	for _, n := range []int64{30_000_000, math.MaxInt32, -1, math.MinInt32} {
		count := 0
		numbers(reflect.ValueOf(decided()).Elem(), "", func(string, reflect.Value) { count++ })
		for i := range count {
			a, k, where := decided(), 0, ""
			numbers(reflect.ValueOf(a).Elem(), "", func(path string, v reflect.Value) {
				if k++; k-1 == i {
					v.SetInt(n)
					where = path
				}
			})
			if bytes := cost(a); bytes > 64<<20 {
				t.Errorf("%s: %d takes %d MiB", where, n, bytes>>20)
			}
			all++
		}
	}
	if all < 30 {
		t.Errorf("only %d numbers were tried", all)
	}
}

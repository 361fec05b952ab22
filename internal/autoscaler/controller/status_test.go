// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/aspect"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/facts"
)

// The size of a status is bounded, and it always contains the reason of the decision.
func TestStatusFits(t *testing.T) {
	long := strings.Repeat("sehr_längliche_metrik_", 20)
	d := &scale.Decision{Time: at(0), Current: 1, Replicas: 2, Rule: scale.RuleDemand}
	for i := range 16 {
		name := fmt.Sprint(long, i)
		d.Inputs = append(d.Inputs, scale.Input{Signal: name, Unit: "%", Value: math.Pi, Target: 1e9, Fresh: 100})
		for range 4 {
			d.Steps = append(d.Steps, scale.Step{Rule: scale.RulePartial, Signal: name, After: 2, Facts: facts.Partial{Serving: 3}})
		}
	}
	r := &pass{
		Pass:     aspect.Pass{At: at(0), Object: autoscaler("web"), Target: &target.Target{Key: target.NewKey("apps", "Deployment", "ns", "web")}, Decision: d},
		obstacle: verdict{reasonScaleFailed, strings.Repeat("x", 5000)},
	}
	st := statusOf(r, &v1alpha1.GPUAutoscalerStatus{})
	b, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) > maxStatus || len(b) < maxStatus/2 {
		t.Errorf("%d bytes, want at most %d and not needlessly few", len(b), maxStatus)
	}
	if st.LastDecision == nil || st.LastDecision.Reason != "Demand" || len(st.LastDecision.Message) < 500 {
		t.Errorf("the decision is gone: %+v", st.LastDecision)
	}
}

func TestStatusOfAReport(t *testing.T) {
	r, w := loaded(t, 90)
	w.pass(r.now)
	st := statusOf(w.status.next, &v1alpha1.GPUAutoscalerStatus{})
	if st.CurrentReplicas != 1 || st.DesiredReplicas == nil || *st.DesiredReplicas != 2 || st.ServingReplicas != 1 || st.LastScaleTime == nil || st.ObservedGeneration != 1 {
		t.Errorf("status %+v", st)
	}
	want := []v1alpha1.InputStatus{{Signal: "Utilization", Value: "90", Target: "60", Unit: "%", Replicas: 1, AgeMilliseconds: 1000, Deciding: true}}
	if diff := cmp.Diff(want, st.LastDecision.Inputs); diff != "" {
		t.Error(diff)
	}
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionAbleToScale, v1alpha1.ConditionSignals} {
		if !meta.IsStatusConditionTrue(st.Conditions, kind) {
			t.Errorf("%s is not true: %+v", kind, st.Conditions)
		}
	}

	// A later look at the same: only the reasons' time is another.
	w.pass(r.now.Add(time.Second))
	next := statusOf(w.status.next, st)
	if c := meta.FindStatusCondition(next.Conditions, v1alpha1.ConditionReady); !c.LastTransitionTime.Time.Equal(r.now) {
		t.Errorf("Ready since %v, want %v", c.LastTransitionTime, r.now)
	}
}

// Pods serve whether or not the spec is valid.
func TestStatusCountsPodsWithoutADecision(t *testing.T) {
	r, w := loaded(t, 90)
	done := pod("web", "web-0", r.now, ready(r.now))
	done.Status.Phase = corev1.PodSucceeded
	r.pods.Pods = append(r.pods.Pods, pod("web", "web-2", r.now), done)
	w.object.Load().Spec.MaxReplicas = 0
	w.pass(r.now)
	st := statusOf(w.status.next, &v1alpha1.GPUAutoscalerStatus{})
	if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady); c.Reason != reasonInvalid {
		t.Fatalf("condition %+v", c)
	}
	if st.CurrentReplicas != 1 || st.ServingReplicas != 1 || st.StartingReplicas != 1 {
		t.Errorf("%d replicas, %d serving, %d starting; want one of each", st.CurrentReplicas, st.ServingReplicas, st.StartingReplicas)
	}
}

func TestStatusReportsMissingData(t *testing.T) {
	r, w := loaded(t, 90)
	w.pass(r.now)
	w.pass(r.now.Add(10 * time.Second))
	st := statusOf(w.status.next, &v1alpha1.GPUAutoscalerStatus{})
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionSignals} {
		c := meta.FindStatusCondition(st.Conditions, kind)
		if c.Status != metav1.ConditionFalse || c.Reason != reasonNoFreshData {
			t.Errorf("%s is %+v", kind, c)
		}
		contains(t, c.Message, "no serving replica has a fresh value of Utilization")
	}
	if in := st.LastDecision.Inputs[0]; in.Value != "" || in.Replicas != 0 {
		t.Errorf("a value where there is none: %+v", in)
	}
}

// Between a first replica's readiness and its first value nothing is wrong.
func TestStatusWaitsForAFirstValue(t *testing.T) {
	a := autoscaler("web")
	r := newRig(t, deployment("web", 1), a)
	w := r.add(a)
	p := pod("web", "web-1", r.now)
	r.pods.Pods = append(r.pods.Pods, p)
	st := &v1alpha1.GPUAutoscalerStatus{}
	is := func(after time.Duration, want string) {
		t.Helper()
		w.pass(r.now.Add(after))
		st = statusOf(w.status.next, st)
		if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady); c.Reason != want {
			t.Errorf("after %v: Ready is %s, %s (%s); want %s", after, c.Status, c.Reason, c.Message, want)
		}
	}
	is(0, reasonNotServing)
	ready(r.now)(p)
	is(time.Second, reasonNotServing)
	is(time.Second+scale.DefaultMaxAge-time.Millisecond, reasonNotServing)
	r.utilization(r.now.Add(4*time.Second), 60, p)
	is(4*time.Second, reasonReady)
	is(time.Minute, reasonNoFreshData) // later on it is wrong at once

	// A controller that starts leaves what the last one said until it knows better.
	r.utilization(r.now.Add(2*time.Minute), 60, p)
	is(2*time.Minute, reasonReady)
	w.seen.servingSince = time.Time{}
	is(3*time.Minute, reasonReady)
	is(3*time.Minute+scale.DefaultMaxAge, reasonNoFreshData)
}

func TestStatusReportsAMissingPort(t *testing.T) {
	r, w := loaded(t, 90)
	a := w.object.Load()
	a.Spec.Signals[0].GPU, a.Spec.Signals[0].Pods = nil, &v1alpha1.PodsSignal{Metric: "queue"}
	w.pass(r.now)
	c := meta.FindStatusCondition(statusOf(w.status.next, &v1alpha1.GPUAutoscalerStatus{}).Conditions, v1alpha1.ConditionSignals)
	contains(t, c.Message, "fresh value of queue, so the replicas stay as they are (missingData: Hold): pod web-1 has 0 container ports; name the one")
}

// A status is written at once when something was decided, soon when counts
// moved, and seldom when only its reasons are others.
func TestWriteDelay(t *testing.T) {
	base := v1alpha1.GPUAutoscalerStatus{
		CurrentReplicas: 2, DesiredReplicas: new(int32(2)),
		LastDecision: &v1alpha1.DecisionStatus{
			Reason: "Demand", Message: "a", Inputs: []v1alpha1.InputStatus{{Signal: "s", Value: "1", Replicas: 2}},
		},
		Conditions: []metav1.Condition{{Type: "Ready", Status: "True"}},
	}
	f := func(what string, want time.Duration, change func(*v1alpha1.GPUAutoscalerStatus)) {
		t.Helper()
		next := base.DeepCopy()
		change(next)
		if got := writeDelay(&base, next, 0); got != want {
			t.Errorf("%s: due in %v, want %v", what, got, want)
		}
	}
	f("nothing", maxStatusInterval, func(*v1alpha1.GPUAutoscalerStatus) {})
	f("the message", maxStatusInterval, func(s *v1alpha1.GPUAutoscalerStatus) { s.LastDecision.Message = "b" })
	f("a value", maxStatusInterval, func(s *v1alpha1.GPUAutoscalerStatus) { s.LastDecision.Inputs[0].Value = "2" })
	f("how many have one", ruleStatusInterval, func(s *v1alpha1.GPUAutoscalerStatus) { s.LastDecision.Inputs[0].Replicas = 1 })
	f("the rule", ruleStatusInterval, func(s *v1alpha1.GPUAutoscalerStatus) { s.LastDecision.Reason = "Tolerance" })
	f("what serves", minStatusInterval, func(s *v1alpha1.GPUAutoscalerStatus) { s.ServingReplicas = 1 })
	f("what was learned", minStatusInterval, func(s *v1alpha1.GPUAutoscalerStatus) { s.Startup = &v1alpha1.LearnedStartup{} })
	f("what is desired", 0, func(s *v1alpha1.GPUAutoscalerStatus) { s.DesiredReplicas = new(int32(3)) })
	f("a condition", 0, func(s *v1alpha1.GPUAutoscalerStatus) { s.Conditions[0].Status = "False" })
}

func TestStatusIsWritten(t *testing.T) {
	r, w := loaded(t, 90)
	w.pass(r.now)
	if wait := w.status.writeIfDue(t.Context(), w.status.next, r.now); wait != 0 {
		t.Fatalf("waits %v with the first status", wait)
	}
	var a v1alpha1.GPUAutoscaler
	if err := r.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "web"}, &a); err != nil {
		t.Fatal(err)
	}
	if a.Status.DesiredReplicas == nil || *a.Status.DesiredReplicas != 2 || a.Status.LastDecision == nil {
		t.Errorf("written: %+v", a.Status)
	}
	if wait := w.status.writeIfDue(t.Context(), w.status.next, r.now.Add(time.Second)); wait != maxStatusInterval-time.Second {
		t.Errorf("waits %v with what is there already, want %v", wait, maxStatusInterval-time.Second)
	}
	r.leading = false
	w.object.Load().Status = v1alpha1.GPUAutoscalerStatus{}
	if w.status.writeIfDue(t.Context(), w.status.next, r.now.Add(time.Hour)); w.status.last != nil {
		t.Error("a follower writes")
	}
}

// While other statuses of a namespace take the API server's time, the statuses of an object
// wait, and the newest one is written. Those of another namespace are written at once.
func TestStatusesThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var written []int32
		began := time.Now()
		r.calls.SubResourcePatch = func(_ context.Context, _ client.Client, _ string, obj client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
			body, err := patch.Data(obj)
			if err != nil {
				t.Error(err)
			}
			if _, ok := obj.(*metav1.PartialObjectMetadata); !ok {
				t.Errorf("the answer is a %T, with the spec", obj)
			}
			var ops [2]struct{ Value json.RawMessage }
			var st v1alpha1.GPUAutoscalerStatus
			if err := json.Unmarshal(body, &ops); err != nil {
				t.Error(err)
			}
			if err := json.Unmarshal(ops[1].Value, &st); err != nil {
				t.Error(err)
			}
			written = append(written, *st.DesiredReplicas)
			if obj.GetNamespace() == "quiet" && time.Since(began) != 0 {
				t.Errorf("another namespace's status waited %s", time.Since(began))
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		writer := func(namespace string) *statusWriter {
			a := autoscaler("web")
			a.Namespace = namespace
			w := newWorkload(ctx, r.shared, r.route, a)
			go w.status.run()
			return w.status
		}
		report := func(s *statusWriter, replicas int32) {
			s.enqueue(&pass{Pass: aspect.Pass{
				At: time.Now(), Object: s.w.object.Load(), Target: &target.Target{Key: target.NewKey("apps", "Deployment", "ns", "web")},
				Decision: &scale.Decision{Time: time.Now(), Replicas: replicas, Rule: scale.RuleDemand},
			}})
			synctest.Wait()
		}
		noisy, quiet := writer("noisy"), writer("quiet")
		var slots []func()
		for range fair.ForWrites().Share {
			waiting, stop := context.WithTimeout(ctx, time.Millisecond)
			if done, err := r.deps.Writes.Acquire(waiting, fair.Request{Payer: fair.Namespace("noisy")}); err == nil {
				slots = append(slots, done)
			}
			stop()
		}
		began = time.Now()
		for i := range int32(100) {
			report(noisy, i)
		}
		report(quiet, 1000)
		time.Sleep(time.Minute)
		for _, done := range slots {
			done()
		}
		synctest.Wait()
		if !slices.Equal(written, []int32{1000, 99}) {
			t.Errorf("written: %v, want the other namespace's and the newest", written)
		}
		if running, waiting := r.deps.Writes.Counts(); running+waiting != 0 {
			t.Errorf("%d requests run and %d wait", running, waiting)
		}
		cancel()
		synctest.Wait()
	})
}

func TestNumber(t *testing.T) {
	f := func(x float64, want string) {
		t.Helper()
		if got := number(x); got != want {
			t.Errorf("number(%g) = %q, want %q", x, got, want)
		}
	}
	f(0, "0")
	f(60, "60")
	f(100.0/3, "33.33")
	f(0.123456, "0.1235")
	f(0.6, "0.6")
	f(81559, "81559")
	f(81559.4, "81559")
	f(-2.5, "-2.5")
	f(1.5e12, "1500000000000")
	f(math.NaN(), "")
	f(math.Inf(1), "")
}

// Behind an obstacle that lasts, nothing is said about an objective, which is that of another target or spec.
func TestAnObstacleEndsTheConditionsOfAnObjective(t *testing.T) {
	kinds := []string{v1alpha1.ConditionAttainable, v1alpha1.ConditionMeasured}
	have := func(st *v1alpha1.GPUAutoscalerStatus) (out []string) {
		return slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return meta.FindStatusCondition(st.Conditions, kind) == nil })
	}
	for name, change := range map[string]func(*rig, *workload, *v1alpha1.GPUAutoscaler){
		"no target":     func(_ *rig, _ *workload, a *v1alpha1.GPUAutoscaler) { a.Spec.ScaleTargetRef.Name = "nobody" },
		"invalid":       func(_ *rig, _ *workload, a *v1alpha1.GPUAutoscaler) { a.Spec.MaxReplicas = 0 },
		"being deleted": func(r *rig, _ *workload, a *v1alpha1.GPUAutoscaler) { a.DeletionTimestamp = &metav1.Time{Time: r.now} },
		"rival": func(r *rig, _ *workload, _ *v1alpha1.GPUAutoscaler) {
			r.rivals.Set(target.Rival{Kind: "HorizontalPodAutoscaler", Namespace: "ns", Name: "h"}, target.NewKey("apps", "Deployment", "ns", "web"), false)
		},
	} {
		r, w := loaded(t, 60)
		a := w.object.Load().DeepCopy()
		a.Generation++
		a.Spec.Signals = []v1alpha1.Signal{{Preset: "vllm", SLO: &v1alpha1.SLO{InterTokenLatency: &metav1.Duration{Duration: 50 * time.Millisecond}}}}
		w.object.Store(a)
		w.pass(r.now)
		st := statusOf(w.status.next, &v1alpha1.GPUAutoscalerStatus{})
		if got := have(st); !slices.Equal(got, kinds) {
			t.Fatalf("%s: before it there are %q, want %q", name, got, kinds)
		}
		failed := *w.status.next // the decision is made, and cannot be written
		failed.obstacle, failed.parts = verdict{reasonScaleFailed, "forbidden"}, nil
		w.report(&failed)
		if next := statusOf(&failed, st); !slices.Equal(have(next), kinds) || len(next.Objectives) == 0 {
			got := have(next)
			t.Errorf("%s: a write that fails leaves %q, want %q", name, got, kinds)
		}
		next := a.DeepCopy()
		next.Generation++
		change(r, w, next)
		w.object.Store(next)
		w.pass(r.now.Add(time.Second))
		if got := have(statusOf(w.status.next, st)); len(got) > 0 {
			t.Errorf("%s: %q are still there", name, got)
		}
	}
}

// The conditions of every aspect end by one rule: when the spec does not ask for it, and behind an obstacle that lasts.
func TestConditionsOfAnAspectEnd(t *testing.T) {
	f := func(what string, stays, unasked bool, reason string) {
		t.Helper()
		r := &pass{
			Pass:     aspect.Pass{At: at(1), Object: autoscaler("web"), Target: &target.Target{}},
			obstacle: verdict{reason: reason}, parts: []aspect.Part{{Owns: []string{"Mine"}, Unasked: unasked}},
		}
		base := &v1alpha1.GPUAutoscalerStatus{Conditions: []metav1.Condition{{Type: "Mine"}, {Type: "Other"}}}
		if st := statusOf(r, base); stays != (meta.FindStatusCondition(st.Conditions, "Mine") != nil) || meta.FindStatusCondition(st.Conditions, "Other") == nil {
			t.Errorf("%s: conditions %+v", what, st.Conditions)
		}
	}
	f("asked for, without a new one", true, false, "")
	f("not asked for", false, true, "")
	f("an obstacle that lasts", false, false, reasonOwned)
	f("an API server that does not answer", true, false, reasonUnreadable)
}

// kubectl get shows the deciding signal and who sets the replicas. A new value alone is written late.
func TestColumns(t *testing.T) {
	f := func(change func(*v1alpha1.GPUAutoscalerSpec), signal, mode string) {
		t.Helper()
		a := autoscaler("web")
		change(&a.Spec)
		r := newRig(t, deployment("web", 1), a)
		r.pods.Pods = []*corev1.Pod{pod("web", "web-1", r.now.Add(-time.Hour), ready(r.now.Add(-time.Hour)))}
		r.utilization(r.now, 36.24, r.pods.Pods[0])
		w := r.add(a)
		w.pass(r.now)
		if st := statusOf(w.status.next, &a.Status); st.Signal != signal || st.Mode != mode {
			t.Errorf("%q and %q, want %q and %q", st.Signal, st.Mode, signal, mode)
		}
	}
	f(func(*v1alpha1.GPUAutoscalerSpec) {}, "36.2/60 %", "Scale")
	f(func(s *v1alpha1.GPUAutoscalerSpec) { s.Actuation = v1alpha1.ActuationAdvise }, "36.2/60 %", "Advise")
	f(func(s *v1alpha1.GPUAutoscalerSpec) {
		s.Override = &v1alpha1.Override{Replicas: new(int32(2)), Until: metav1.Time{Time: time.Now().Add(time.Hour)}, Reason: "incident 4711"}
	}, "36.2/60 %", "Held")
	f(func(s *v1alpha1.GPUAutoscalerSpec) { s.Signals[0].GPU.Metric = "Power" }, "?/60 W", "Scale")

	old, next := &v1alpha1.GPUAutoscalerStatus{Signal: "36/60 %"}, &v1alpha1.GPUAutoscalerStatus{Signal: "37/60 %"}
	if d := writeDelay(old, next, 0); d != maxStatusInterval {
		t.Errorf("a new value is written after %s", d)
	}
}

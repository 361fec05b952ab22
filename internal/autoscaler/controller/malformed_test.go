// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// asStored is a as a watch gives it.
func asStored(t testing.TB, a *v1alpha1.GPUAutoscaler) *unstructured.Unstructured {
	t.Helper()
	b, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	u := autoscalerKind()
	if err := json.Unmarshal(b, &u.Object); err != nil {
		t.Fatal(err)
	}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("GPUAutoscaler"))
	u.SetGeneration(max(1, a.Generation))
	return u
}

// garbage replaces a field of a stored object.
func garbage(t testing.TB, u *unstructured.Unstructured, value any, fields ...string) *unstructured.Unstructured {
	t.Helper()
	out := u.DeepCopy()
	if err := unstructured.SetNestedField(out.Object, value, fields...); err != nil {
		t.Fatal(err)
	}
	return out
}

// deliver gives an object to the controller, which runs none of its goroutines.
func (r *rig) deliver(u *unstructured.Unstructured, gone bool) *workload {
	r.t.Helper()
	w := r.workloads[client.ObjectKeyFromObject(u)]
	if w == nil {
		a := &v1alpha1.GPUAutoscaler{} // of no UID: the change below is taken
		a.Namespace, a.Name = u.GetNamespace(), u.GetName()
		w = newWorkload(r.t.Context(), r.shared, r.route, a)
		r.workloads[w.key] = w
	}
	r.autoscalerChanged(r.t.Context(), u, gone)
	return w
}

// A malformed spec affects only its own object, whose condition reports it.
func TestMalformedSpecAffectsOnlyItsObject(t *testing.T) {
	reg := prometheus.NewRegistry()
	bad, good := autoscaler("bad"), autoscaler("web")
	r := newRig(t, deployment("web", 1), good)
	reg.MustRegister(r.meters)
	p := pod("web", "web-1", r.now.Add(-time.Hour), ready(r.now.Add(-time.Hour)))
	r.pods.Pods = append(r.pods.Pods, p)
	r.utilization(r.now.Add(-time.Second), 90, p)
	for what, u := range map[string]*unstructured.Unstructured{
		"a word for a number":   garbage(t, asStored(t, bad), "many", "spec", "maxReplicas"),
		"a number too large":    garbage(t, asStored(t, bad), int64(1)<<40, "spec", "maxReplicas"),
		"a list for an object":  garbage(t, asStored(t, bad), []any{"x"}, "spec", "scaleTargetRef"),
		"no object at all":      garbage(t, asStored(t, bad), "yes", "spec"),
		"a quantity of letters": garbage(t, asStored(t, bad), []any{map[string]any{"target": map[string]any{"value": "lots"}}}, "spec", "signals"),
		"a latency of nothing": garbage(t, asStored(t, bad),
			[]any{map[string]any{"preset": "vllm", "slo": map[string]any{"interTokenLatency": "50"}}}, "spec", "signals"),
	} {
		r.events = nil
		w := r.deliver(u, false)
		w.health.obstacle, w.compiled = "", nil
		w.pass(r.now)
		if got := w.status.next.obstacle; got.reason != reasonInvalid || !strings.Contains(got.message, "the spec cannot be read") {
			t.Errorf("%s: %+v", what, got)
		}
		if want := []string{"Warning " + reasonInvalid}; !slices.Equal(r.eventReasons(), want) {
			t.Errorf("%s: events %v, want %v", what, r.eventReasons(), want)
		}
		if got := gathered(t, reg, "gpupilot_autoscaler_malformed"); !slices.Equal(got, []string{"name=bad namespace=ns part=spec"}) {
			t.Errorf("%s: the metric is %v", what, got)
		}
	}
	r.add(good).pass(r.now)
	if n := r.replicas("web"); n != 2 {
		t.Errorf("%d replicas of a good object beside a malformed one, want 2", n)
	}
	r.deliver(asStored(t, bad), false)
	if got := gathered(t, reg, "gpupilot_autoscaler_malformed"); len(got) != 0 {
		t.Errorf("mended, the metric is %v", got)
	}
}

// gathered are the label sets of a metric, sorted.
func gathered(t *testing.T, reg *prometheus.Registry, name string) (out []string) {
	t.Helper()
	for _, m := range metricsOf(t, reg, name) {
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, l.GetName()+"="+l.GetValue())
		}
		out = append(out, strings.Join(labels, " "))
	}
	return out
}

// Garbage in a status leaves the spec and the rest of the status.
func TestMalformedStatusIsLeftOut(t *testing.T) {
	a := autoscaler("web")
	a.Status.Startup = &v1alpha1.LearnedStartup{P50Seconds: 30, P95Seconds: 40, Samples: 5}
	a.Status.Memory = &v1alpha1.Memory{Time: metav1.NewMicroTime(at(0)), State: runtime.RawExtension{Raw: []byte(`{"replicas":3}`)}}
	u := asStored(t, a)
	f := func(what string, u *unstructured.Unstructured, keepsStartup, keepsMemory bool) {
		t.Helper()
		got, badSpec, badStatus := policy.Decode(u)
		if badSpec != nil || badStatus == nil || got.Spec.MaxReplicas != 10 || len(got.Spec.Signals) != 1 {
			t.Errorf("%s: spec %v, status %v, %+v", what, badSpec, badStatus, got.Spec)
		}
		if (got.Status.Startup != nil) != keepsStartup || (got.Status.Memory != nil) != keepsMemory {
			t.Errorf("%s: kept %+v", what, got.Status)
		}
	}
	f("conditions", garbage(t, u, "none", "status", "conditions"), true, true)
	f("startup", garbage(t, u, "slow", "status", "startup"), false, true)
	f("a start-up too long", garbage(t, u, int64(1)<<40, "status", "startup", "p95Seconds"), false, true)
	f("memory", garbage(t, u, []any{int64(1)}, "status", "memory"), true, false)
	f("the memory's time", garbage(t, u, "yesterday", "status", "memory", "time"), true, false)
	f("all of it", garbage(t, u, "fine", "status"), false, false)
	f("its decision", garbage(t, u, map[string]any{"time": int64(5)}, "status", "lastDecision"), true, true)
}

// Of two GPUAutoscalers for one target the older has it, unless it is invalid,
// malformed or being deleted: then the other works, from that moment on.
func TestAnInvalidObjectClaimsNothing(t *testing.T) {
	older, younger := autoscaler("older"), autoscaler("web")
	older.Spec.ScaleTargetRef.Name = "web"
	older.CreationTimestamp, younger.CreationTimestamp = metav1.Time{Time: at(5)}, metav1.Time{Time: at(10)}
	r := newRig(t, deployment("web", 1), younger)
	w := r.deliver(asStored(t, younger), false)
	sees := func(what, want string) {
		t.Helper()
		select {
		case <-w.wake:
		default:
			t.Errorf("%s: the other workload was not woken", what)
		}
		w.pass(r.now)
		if got := w.status.next.obstacle.reason; got != want {
			t.Errorf("%s: the younger one is %q, want %q", what, got, want)
		}
	}
	next := int64(1)
	tell := func(u *unstructured.Unstructured, gone bool) {
		next++
		u.SetGeneration(next)
		r.deliver(u, gone)
	}
	good := asStored(t, older)
	sees("alone", "")
	tell(good, false)
	sees("beside a valid one", reasonOwned)
	tell(garbage(t, good, int64(0), "spec", "maxReplicas"), false)
	sees("beside an invalid one", "")
	tell(good, false)
	sees("beside one that was mended", reasonOwned)
	tell(garbage(t, good, "many", "spec", "maxReplicas"), false)
	sees("beside a malformed one", "")
	tell(good, false)
	sees("beside one that was mended", reasonOwned)
	r.Controller.deps.LimitQuery = func(_, promql string) (string, bool, error) {
		return "", false, fmt.Errorf("%s reads another namespace", promql)
	}
	asking := older.DeepCopy()
	asking.Spec.Signals = append(asking.Spec.Signals, v1alpha1.Signal{
		Query: &v1alpha1.QuerySignal{PromQL: `x{namespace="other"}`}, Target: &v1alpha1.Target{Type: v1alpha1.Value, Value: resource.MustParse("1")},
	})
	tell(asStored(t, asking), false)
	sees("beside one whose query is refused", "")
	tell(good, false)
	sees("beside one that was mended", reasonOwned)
	deleted := good.DeepCopy()
	stamp := metav1.Time{Time: at(20)}
	deleted.SetDeletionTimestamp(&stamp)
	deleted.SetFinalizers([]string{"example.com/wait"})
	tell(deleted, false)
	sees("beside one that is being deleted", "")
	dying := r.workloads[client.ObjectKeyFromObject(older)]
	dying.pass(r.now)
	if got := dying.status.next.obstacle.reason; got != reasonDeleting {
		t.Errorf("the one that is being deleted is %q", got)
	}
	tell(deleted, true)
	if c := meta.FindStatusCondition(statusOf(w.status.next, &v1alpha1.GPUAutoscalerStatus{}).Conditions, v1alpha1.ConditionAbleToScale); c == nil || c.Status != metav1.ConditionTrue {
		t.Errorf("condition %+v", c)
	}
}

// Signals on device utilisation and on requests are reported by one Event, and by a
// condition that has no effect on Ready.
func TestDeviceUtilizationBesideRequests(t *testing.T) {
	r, w := loaded(t, 90)
	a := w.object.Load().DeepCopy()
	a.Spec.Signals = append(a.Spec.Signals, v1alpha1.Signal{Preset: v1alpha1.PresetVLLM})
	a.Generation++
	w.object.Store(a)
	w.pass(r.now)
	w.pass(r.now.Add(time.Second))
	warnings := 0
	for _, e := range r.events {
		if e.Reason == reasonWasteful {
			warnings++
			contains(t, e.Note, "Utilization (device utilisation) and vllm requests (requests) are both signals")
		}
	}
	if warnings != 1 {
		t.Errorf("%d warnings, want 1: %v", warnings, r.eventReasons())
	}
	st := statusOf(w.status.next, &v1alpha1.GPUAutoscalerStatus{})
	if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionConsistent); c == nil || c.Status != metav1.ConditionFalse || c.Reason != "DeviceUtilizationBesideRequests" {
		t.Errorf("condition %+v", c)
	}
	if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady); c == nil || c.Status != metav1.ConditionTrue {
		t.Errorf("Ready is %+v", c)
	}
	// A controller that starts anew finds it told.
	b := a.DeepCopy()
	b.Status = *st
	r.events = nil
	again := newWorkload(t.Context(), r.shared, r.route, b)
	again.pass(r.now.Add(2 * time.Second))
	if slices.Contains(r.eventReasons(), "Warning "+reasonWasteful) {
		t.Error("told again after a restart")
	}
	// Without the device it is consistent.
	b = b.DeepCopy()
	b.Spec.Signals, b.Generation = b.Spec.Signals[1:], b.Generation+1
	again.object.Store(b)
	again.pass(r.now.Add(3 * time.Second))
	if c := consistencyCondition(again.status.next); c.Status != metav1.ConditionTrue {
		t.Errorf("of requests alone: %+v", c)
	}
}

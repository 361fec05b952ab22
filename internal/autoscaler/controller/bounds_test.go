// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// restarted is the workload in a controller that starts with the last status.
func restarted(t *testing.T, r *rig, w *workload) *workload {
	t.Helper()
	b, err := json.Marshal(statusOf(w.status.next, &v1alpha1.GPUAutoscalerStatus{}))
	if err != nil {
		t.Fatal(err)
	}
	a := w.object.Load().DeepCopy()
	a.Status = v1alpha1.GPUAutoscalerStatus{}
	if err := json.Unmarshal(b, &a.Status); err != nil {
		t.Fatal(err)
	}
	again := newWorkload(t.Context(), r.shared, r.route, a)
	r.workloads[again.key] = again
	return again
}

func TestOverrideIsWritten(t *testing.T) {
	r, w := loaded(t, 30)
	six := int32(6)
	a := w.object.Load().DeepCopy()
	a.Spec.Override = &v1alpha1.Override{Replicas: &six, Until: metav1.Time{Time: r.now.Add(time.Hour)}, Reason: "incident 4711"}
	w = r.add(a)
	w.pass(r.now)
	if n := r.replicas("web"); n != 6 {
		t.Fatalf("%d replicas, want 6", n)
	}
	if want := []string{"Normal Override", "Normal Overridden"}; !slices.Equal(r.eventReasons(), want) {
		t.Errorf("events %v, want %v", r.eventReasons(), want)
	}
	st := statusOf(w.status.next, &v1alpha1.GPUAutoscalerStatus{})
	if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionOverridden); c == nil || c.Status != metav1.ConditionTrue {
		t.Errorf("condition %+v", c)
	}
	contains(t, r.View().Workloads[0].Override, "60 min left: incident 4711")

	// A restart neither forgets nor extends it.
	w = restarted(t, r, w)
	r.utilization(r.now.Add(59*time.Minute), 30, r.pods.Pods...)
	w.pass(r.now.Add(time.Hour - time.Second))
	if n := r.replicas("web"); n != 6 {
		t.Fatalf("%d replicas before the end, want 6", n)
	}
	w = restarted(t, r, w)
	for i := range 2 {
		now := r.now.Add(time.Hour + time.Duration(i)*time.Second)
		r.utilization(now, 30, r.pods.Pods...)
		w.pass(now)
	}
	if c := meta.FindStatusCondition(statusOf(w.status.next, st).Conditions, v1alpha1.ConditionOverridden); c.Status != metav1.ConditionFalse || c.Reason != "OverrideEnded" {
		t.Errorf("condition after the end %+v", c)
	}
	if r.View().Workloads[0].Override != "" {
		t.Error("the page still shows it")
	}
}

// What others set to 0 stays 0, also after a restart; what an override set to 0 does not.
func TestReplicasSetToZero(t *testing.T) {
	r, w := loaded(t, 60)
	w.pass(r.now)
	scaleTo := func(n int32) {
		t.Helper()
		d := deployment("web", n)
		if err := r.client.Update(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	scaleTo(0)
	serving := r.pods.Pods
	r.pods.Pods = nil
	for i := range 5 {
		w.pass(r.now.Add(time.Duration(i+1) * time.Second))
		w = restarted(t, r, w)
	}
	if n := r.replicas("web"); n != 0 {
		t.Fatalf("%d replicas, want 0", n)
	}
	w.pass(r.now.Add(10 * time.Second))
	st := statusOf(w.status.next, &v1alpha1.GPUAutoscalerStatus{})
	if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionScalingActive); c.Status != metav1.ConditionFalse || c.Reason != "ScalingDisabled" {
		t.Errorf("condition %+v", c)
	}
	if want := []string{"Normal ScalingDisabled"}; !slices.Equal(r.eventReasons(), want) {
		t.Errorf("events %v, want %v", r.eventReasons(), want)
	}

	scaleTo(1)
	r.pods.Pods = serving
	r.utilization(r.now.Add(11*time.Second), 90, serving...)
	w.pass(r.now.Add(12 * time.Second))
	if n := r.replicas("web"); n != 2 {
		t.Fatalf("%d replicas once it was set to 1, want 2", n)
	}

	zero := int32(0)
	a := w.object.Load().DeepCopy()
	a.Spec.Override = &v1alpha1.Override{Replicas: &zero, Until: metav1.Time{Time: r.now.Add(20 * time.Second)}, Reason: "maintenance"}
	a.Status = *statusOf(w.status.next, st)
	w = r.add(a)
	w.pass(r.now.Add(13 * time.Second))
	if n := r.replicas("web"); n != 0 {
		t.Fatalf("%d replicas, want the override's 0", n)
	}
	r.pods.Pods = nil
	w.pass(r.now.Add(14 * time.Second))
	w = restarted(t, r, w)
	w.pass(r.now.Add(20 * time.Second))
	if n := r.replicas("web"); n != 1 {
		t.Errorf("%d replicas after the override, want minReplicas", n)
	}
}

// Replicas of a schedule serve when its window starts: they are created earlier by the
// learned start-up.
func TestScheduleLeadsByTheStartup(t *testing.T) {
	r, w := loaded(t, 60)
	three := int32(3)
	start := r.now.UTC().Truncate(time.Minute).Add(10 * time.Minute)
	a := w.object.Load().DeepCopy()
	a.Spec.Schedules = []v1alpha1.Schedule{{Name: "office", Start: start.Format("15:04"), End: start.Add(time.Hour).Format("15:04"), MinReplicas: &three}}
	a.Status.Startup = &v1alpha1.LearnedStartup{P50Seconds: 200, P95Seconds: 240, Samples: 5}
	w = r.add(a)
	replicas := func(now time.Time) int32 {
		r.utilization(now, 60, r.pods.Pods...)
		w.pass(now)
		return r.replicas("web")
	}
	if n := replicas(start.Add(-241 * time.Second)); n != 1 {
		t.Errorf("%d replicas before the lead time, want 1", n)
	}
	if n := replicas(start.Add(-240 * time.Second)); n != 3 {
		t.Errorf("%d replicas at the lead time, want 3", n)
	}
	contains(t, r.events[len(r.events)-1].Note, "schedule office (from "+start.Format("2006-01-02 15:04")+" UTC on): 3 instead of 1")
	st := statusOf(w.status.next, &v1alpha1.GPUAutoscalerStatus{})
	if want := (v1alpha1.BoundsStatus{MinReplicas: 3, MaxReplicas: 10, Schedules: []string{"office"}}); !reflect.DeepEqual(st.Bounds, &want) {
		t.Errorf("bounds in the status %+v, want %+v", st.Bounds, want)
	}
	if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionScalingLimited); c.Status != metav1.ConditionTrue || c.Reason != "Schedule" {
		t.Errorf("condition %+v", c)
	}
	if v := r.View().Workloads[0]; v.Min != 3 || v.Max != 10 || !slices.Equal(v.Schedules, []string{"office"}) {
		t.Errorf("the page shows %d to %d by %v", v.Min, v.Max, v.Schedules)
	}
}

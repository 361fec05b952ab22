// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/test/podtest"
)

// idling is a notebook of two replicas with spec.idle of a minute, each with two GPUs.
type idling struct {
	*rig
	w *workload
}

func newIdling(t *testing.T, change ...func(*v1alpha1.GPUAutoscaler)) *idling {
	t.Helper()
	a, two := autoscaler("notebook"), int32(2)
	a.Spec.MinReplicas, a.Spec.Idle = &two, &v1alpha1.Idle{After: metav1.Duration{Duration: time.Minute}}
	for _, f := range change {
		f(a)
	}
	since := time.Now().Add(-time.Hour)
	gpus := containers(requests(podtest.GPUResource, "2"))
	x := &idling{rig: newRig(t, deployment("notebook", 2), a)}
	x.pods.Pods = []*corev1.Pod{pod("notebook", "a", since, ready(since), gpus), pod("notebook", "b", since, ready(since), gpus)}
	x.w = x.add(a)
	return x
}

// second is a pass with these utilisations of the pods' GPUs; negative: the agent does not
// tell of the GPU.
func (x *idling) second(load ...float64) *v1alpha1.GPUAutoscalerStatus {
	x.t.Helper()
	x.now = x.now.Add(time.Second)
	var devices []podtest.Device
	for i, v := range load {
		p := x.pods.Pods[i/2]
		if d := (podtest.Device{Name: "GPU-" + p.Name + "-" + string(rune('0'+i%2)), Owner: p, Values: map[gpu.FieldID]float64{gpu.GPUUtil: v}}); v >= 0 {
			devices = append(devices, d)
		}
	}
	podtest.Expose(x.t, x.store, "agent", series.TargetLabels{Node: "node-1"}, x.now, devices...)
	x.w.pass(x.now)
	return statusOf(x.w.status.next, &x.w.object.Load().Status)
}

// seconds is many of them.
func (x *idling) seconds(n int, load ...float64) (st *v1alpha1.GPUAutoscalerStatus) {
	x.t.Helper()
	for range n {
		st = x.second(load...)
	}
	return st
}

func (x *idling) is(st *v1alpha1.GPUAutoscalerStatus, replicas int32, reason string) {
	x.t.Helper()
	c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionIdle)
	if got := x.replicas("notebook"); c == nil || c.Reason != reason || got != replicas {
		x.t.Errorf("%d replicas, condition %+v; want %d, %s", got, c, replicas, reason)
	}
}

func TestANotebookThatNobodyUsesIsRemoved(t *testing.T) {
	x := newIdling(t)
	x.is(x.seconds(3, 0, 0, 0, 40), 2, v1alpha1.ReasonIdleInUse)
	st := x.seconds(47, 0, 0, 0, 0)
	x.is(st, 2, v1alpha1.ReasonIdleInUse)
	if st.Idle != nil || len(x.events) > 0 {
		t.Fatalf("too early: %+v, events %v", st.Idle, x.eventReasons())
	}
	st = x.seconds(8, 0, 0, 0, 0)
	x.is(st, 2, v1alpha1.ReasonIdleSoon)
	if !slices.Equal(x.eventReasons(), []string{"Warning IdleSoon"}) || st.Idle == nil || st.Idle.ScaleDownAt == nil {
		t.Fatalf("events %v, status %+v", x.eventReasons(), st.Idle)
	}
	contains(t, x.events[0].Note, "0 replicas stay at "+strings.TrimSuffix(st.Idle.ScaleDownAt.UTC().Format("2006-01-02 15:04:05"), ":00")) // a full minute has no seconds
	contains(t, x.w.shown.Idle, "nobody uses it")
	announced := st.Idle.ScaleDownAt.Time
	for range 30 {
		if x.second(0, 0, 0, 0); x.replicas("notebook") == 0 {
			break
		}
	}
	if d := x.now.Sub(announced); d < -time.Second || d > time.Second {
		t.Errorf("removed %v after the time that was announced", d)
	}
	x.pods.Pods = nil
	st = x.seconds(3)
	x.is(st, 0, v1alpha1.ReasonIdleDown)
	if r := st.Idle.Removed; r == nil || r.From != 2 || r.To != 0 || r.GPUs != 2 || len(r.Pods) != 2 {
		t.Errorf("the status says %+v", r)
	}
	contains(t, x.events[1].Note, "0 instead of 2 until somebody uses it: for 60 s no GPU was active and no request in flight")
	contains(t, x.w.shown.Idle, "2 replicas with")
	if st.ObservedGeneration == 0 || !strings.Contains(meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionIdle).Message, "kubectl scale") {
		t.Error("nothing says how it comes back")
	}
	// A new leader knows who was affected, and lets it sleep.
	again := newIdling(t, func(a *v1alpha1.GPUAutoscaler) { a.Status = *st })
	again.pods.Pods = nil
	zero := deployment("notebook", 0)
	zero.ResourceVersion = ""
	if err := again.client.Delete(t.Context(), deployment("notebook", 2)); err != nil {
		t.Fatal(err)
	}
	if err := again.client.Create(t.Context(), zero); err != nil {
		t.Fatal(err)
	}
	st = again.seconds(5)
	again.is(st, 0, v1alpha1.ReasonIdleDown)
	if st.Idle == nil || st.Idle.Removed == nil || len(again.events) > 0 {
		t.Errorf("after a change of the leader: %+v, events %v", st.Idle, again.eventReasons())
	}
}

// Missing is not idle: neither a replica nor a GPU without a value, nor a lie about more GPUs.
func TestWhatIsNotMeasuredIsNotIdle(t *testing.T) {
	for what, load := range map[string][]float64{
		"no value of a pod": {0, 0}, "no value of a GPU": {0, 0, 0, -1}, "no values": {},
	} {
		x := newIdling(t)
		x.seconds(30, 0, 0, 0, 0)
		st := x.seconds(200, load...)
		x.is(st, 2, v1alpha1.ReasonIdleUnknown)
		x.seconds(55, 0, 0, 0, 0)
		if got := x.replicas("notebook"); got != 2 {
			t.Errorf("%s: %d replicas: the time before counts", what, got)
		}
	}
	x := newIdling(t)
	for range 200 { // another exporter of the node lies that the pods' GPUs are idle
		x.utilizationBy("dcgm", "node-2", x.now.Add(time.Second), 0, x.pods.Pods...)
		x.second(0, 90, 0, 0)
	}
	x.is(x.second(0, 90, 0, 0), 2, v1alpha1.ReasonIdleInUse)
}

// Overrides and the minimum of a schedule take precedence, and advice removes nothing.
func TestOverridesAndAdviceKeepTheReplicas(t *testing.T) {
	f := func(what string, change func(*v1alpha1.GPUAutoscaler)) {
		t.Helper()
		x := newIdling(t, change)
		x.seconds(150, 0, 0, 0, 0)
		if got := x.replicas("notebook"); got != 2 {
			t.Errorf("%s: %d replicas, want 2", what, got)
		}
	}
	two := int32(2)
	f("an override", func(a *v1alpha1.GPUAutoscaler) {
		a.Spec.Override = &v1alpha1.Override{Replicas: &two, Until: metav1.NewTime(time.Now().Add(time.Hour)), Reason: "demo"}
	})
	f("a freeze", func(a *v1alpha1.GPUAutoscaler) {
		a.Spec.Override = &v1alpha1.Override{Freeze: v1alpha1.FreezeUp, Until: metav1.NewTime(time.Now().Add(time.Hour)), Reason: "demo"}
	})
	f("a schedule", func(a *v1alpha1.GPUAutoscaler) {
		a.Spec.Schedules = []v1alpha1.Schedule{{Name: "always", Cron: "* * * * *", Duration: &metav1.Duration{Duration: time.Hour}, MinReplicas: &two}}
	})
	f("advice only", func(a *v1alpha1.GPUAutoscaler) { a.Spec.Actuation = v1alpha1.ActuationAdvise })
}

// The HorizontalPodAutoscaler of actuation: HPA may go where idle goes, and only then.
func TestIdleReachesTheHPA(t *testing.T) {
	x := newIdling(t, func(a *v1alpha1.GPUAutoscaler) { a.Spec.Actuation = v1alpha1.ActuationHPA })
	f := func(want int32, seconds int) {
		t.Helper()
		x.seconds(seconds, 0, 0, 0, 0)
		var h autoscalingv2.HorizontalPodAutoscaler
		if err := x.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "gpupilot-notebook"}, &h); err != nil {
			t.Fatal(err)
		}
		if *h.Spec.MinReplicas != want {
			t.Errorf("its minReplicas is %d, want %d", *h.Spec.MinReplicas, want)
		}
	}
	f(2, 30)
	f(0, 45)
}

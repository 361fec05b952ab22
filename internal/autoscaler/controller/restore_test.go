// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// restoring is a Deployment of 2 replicas that a GPUAutoscaler with onDelete: Restore has scaled
// to 3.
func restoring(t *testing.T, change ...func(*v1alpha1.GPUAutoscaler)) (*rig, *workload) {
	t.Helper()
	a := autoscaler("web")
	a.Spec.OnDelete = v1alpha1.OnDeleteRestore
	for _, f := range change {
		f(a)
	}
	r := newRig(t, deployment("web", 2), a)
	since := time.Now().Add(-time.Hour)
	r.pods.Pods = []*corev1.Pod{pod("web", "a", since, ready(since)), pod("web", "b", since, ready(since))}
	w := r.add(a)
	r.utilization(r.now, 90, r.pods.Pods...)
	w.pass(r.now)
	if got := r.replicas("web"); a.Spec.OnDelete == v1alpha1.OnDeleteRestore && a.Status.LastScaleTime == nil && a.Status.ReplicasBefore == nil && got != 2 {
		t.Fatalf("%d replicas before those from before are stored", got)
	}
	stored := *w.object.Load()
	stored.Status = *statusOf(w.status.next, &stored.Status)
	w.object.Store(&stored)
	r.utilization(r.now.Add(time.Second), 90, r.pods.Pods...)
	w.pass(r.now.Add(time.Second))
	if got := r.replicas("web"); got != 3 && a.Spec.Actuation != v1alpha1.ActuationAdvise {
		t.Fatalf("%d replicas, want 3", got)
	}
	return r, w
}

// deleted is the event of the deletion, which has the object's identity only.
func (r *rig) deleted(w *workload) {
	u := autoscalerKind()
	u.SetNamespace(w.key.Namespace)
	u.SetName(w.key.Name)
	close(w.ended)
	r.autoscalerChanged(r.t.Context(), u, true)
	r.running.Wait()
}

func TestADeletedObjectRestoresTheReplicas(t *testing.T) {
	r, w := restoring(t)
	contains(t, r.View().Workloads[0].Deletion, "Deployment web gets 2 replicas again, as before it")
	r.deleted(w)
	if got := r.replicas("web"); got != 2 {
		t.Errorf("%d replicas, want those from before", got)
	}
	last := r.events[len(r.events)-1]
	if last.Reason != "ReplicasRestored" {
		t.Errorf("events %v", r.eventReasons())
	}
	contains(t, last.Note, "scaled Deployment web from 3 to 2")
}

// What is not to be restored stays.
func TestADeletedObjectKeepsTheReplicas(t *testing.T) {
	f := func(what string, want int32, change func(*v1alpha1.GPUAutoscaler), before func(*rig, *workload)) {
		t.Helper()
		if change == nil {
			change = func(*v1alpha1.GPUAutoscaler) {}
		}
		r, w := restoring(t, change)
		if before != nil {
			before(r, w)
		}
		r.deleted(w)
		if got := r.replicas("web"); got != want {
			t.Errorf("%s: %d replicas, want %d", what, got, want)
		}
	}
	set := func(n int32) func(*rig, *workload) {
		return func(r *rig, _ *workload) {
			r.t.Helper()
			d := deployment("web", 0)
			if err := r.client.Get(r.t.Context(), client.ObjectKeyFromObject(d), d); err != nil {
				r.t.Fatal(err)
			}
			if d.Spec.Replicas = &n; r.client.Update(r.t.Context(), d) != nil {
				r.t.Fatal("cannot update")
			}
		}
	}
	f("onDelete: Keep", 3, func(a *v1alpha1.GPUAutoscaler) { a.Spec.OnDelete = v1alpha1.OnDeleteKeep }, nil)
	f("no onDelete", 3, func(a *v1alpha1.GPUAutoscaler) { a.Spec.OnDelete = "" }, nil)
	f("advice only", 2, func(a *v1alpha1.GPUAutoscaler) { a.Spec.Actuation = v1alpha1.ActuationAdvise }, nil)
	f("somebody else leads", 3, nil, func(r *rig, _ *workload) { r.leading = false })
	f("somebody has scaled it since", 7, nil, set(7))
	f("somebody has set it to 0", 0, nil, func(r *rig, w *workload) { set(0)(r, w); w.pass(r.now.Add(2 * time.Second)) })
	f("it has been created again", 3, nil, func(r *rig, _ *workload) {
		again := autoscaler("web")
		again.UID = "again"
		again.Name = "again"
		r.rivals.SetAutoscaler(again, false)
	})
	f("an earlier version has scaled it", 3, func(a *v1alpha1.GPUAutoscaler) {
		a.Status.LastScaleTime = &metav1.Time{Time: time.Now().Add(-time.Hour)}
	}, nil)
}

// What another leader has recorded stays, over a time in which nothing can be decided too.
func TestReplicasBeforeAreKept(t *testing.T) {
	before := &v1alpha1.ReplicasBefore{Target: "Deployment web", Replicas: 7}
	r, w := restoring(t, func(a *v1alpha1.GPUAutoscaler) { a.Status.ReplicasBefore = before })
	if got := statusOf(w.status.next, &v1alpha1.GPUAutoscalerStatus{}).ReplicasBefore; got == nil || *got != *before {
		t.Errorf("the status has %+v", got)
	}
	broken := *w.object.Load()
	broken.Generation, broken.Spec.MaxReplicas = broken.Generation+1, 0
	w.object.Store(&broken)
	w.pass(r.now.Add(3 * time.Second))
	if got := statusOf(w.status.next, &v1alpha1.GPUAutoscalerStatus{}).ReplicasBefore; got == nil || *got != *before {
		t.Errorf("with an invalid spec the status has %+v", got)
	}
}

// An API server that refuses is asked again for a minute, and not for longer.
func TestRestoringEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := restoring(t)
		asked := 0
		r.calls.SubResourceUpdate = func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
			asked++
			return errors.New("no")
		}
		began := time.Now()
		r.deleted(w)
		if took := time.Since(began); took != restoreFor || asked < 5 || asked > 20 {
			t.Errorf("asked %d times in %v", asked, took)
		}
	})
}

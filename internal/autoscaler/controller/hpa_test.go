// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

// With actuation: HPA the HorizontalPodAutoscaler is the only writer, and it is gone before this controller is one again.
func TestPassActuatesByHPA(t *testing.T) {
	r, w := loaded(t, 90)
	writes := 0
	r.calls.SubResourceUpdate = func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
		writes++
		return accept(ctx, c, sub, obj, opts...)
	}
	now := r.now
	pass := func(actuation v1alpha1.Actuation) metav1.Condition {
		t.Helper()
		a := w.object.Load().DeepCopy()
		if a.Spec.Actuation != actuation {
			a.Spec.Actuation = actuation
			a.Generation++
			var is v1alpha1.GPUAutoscaler
			if err := r.client.Get(t.Context(), w.key, &is); err != nil {
				t.Fatal(err)
			}
			if is.Generation = a.Generation; r.client.Update(t.Context(), &is) != nil {
				t.Fatal("cannot change the generation")
			}
			w.setObject(a, &flaws{})
		}
		now = now.Add(time.Second)
		r.utilization(now, 90, r.pods.Pods...)
		w.pass(now)
		return *meta.FindStatusCondition(w.metered.Conditions, v1alpha1.ConditionAbleToScale)
	}
	hpa := func() (*autoscalingv2.HorizontalPodAutoscaler, error) {
		var h autoscalingv2.HorizontalPodAutoscaler
		err := r.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "gpupilot-web"}, &h)
		if err == nil && h.UID == "" { // the fake gives none
			h.UID = "h1"
			err = r.client.Update(t.Context(), &h)
			w.actuator.hpa.UID = h.UID
		}
		return &h, err
	}
	pass(v1alpha1.ActuationHPA)
	h, err := hpa()
	if err != nil || h.Spec.MaxReplicas != 10 || writes > 0 {
		t.Fatalf("%+v, %v after %d writes", h, err, writes)
	}
	if c := pass(v1alpha1.ActuationHPA); c.Reason != reasonAble || writes > 0 {
		t.Errorf("%+v after %d writes", c, writes)
	}
	if d, err := r.DesiredReplicas("ns", "web"); err != nil || d.Replicas != 2 {
		t.Errorf("it decides %d, %v", d.Replicas, err)
	}
	if v := r.View(); len(v.Workloads) != 1 || v.Workloads[0].Actuation != "HPA" || v.Workloads[0].HPA != target.HPAName("web") || len(v.Recent) != 1 || v.Recent[0].Advice {
		t.Errorf("the page has %+v, with the decisions %+v", v.Workloads, v.Recent)
	}
	contains(t, fmt.Sprint(r.events), "asks its HorizontalPodAutoscaler to scale Deployment web from 1 to 2")

	c := pass(v1alpha1.ActuationScale)
	if c.Reason != reasonHPAWaits || writes > 0 {
		t.Errorf("while it stops: %+v, %d writes", c, writes)
	}
	if h, err = hpa(); err != nil {
		t.Fatal(err)
	}
	h.Status.Conditions = []autoscalingv2.HorizontalPodAutoscalerCondition{{
		Type: autoscalingv2.ScalingActive, Status: corev1.ConditionFalse, Message: "no metric " + h.Spec.Metrics[0].External.Metric.Name + "/nil",
	}}
	if err := r.client.Update(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if c = pass(v1alpha1.ActuationScale); c.Reason != reasonAble || writes != 1 || r.replicas("web") != 2 {
		t.Errorf("when it is stopped: %+v, %d writes", c, writes)
	}
	if _, err := hpa(); err == nil {
		t.Error("it is not deleted")
	}
}

// Whichever replica the HPA controller asks, it reads the leader's decision.
func TestFollowersServeTheLeadersDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := loaded(t, 90)
		r.leading = false
		a := w.object.Load().DeepCopy()
		a.Spec.Actuation = v1alpha1.ActuationHPA
		a.Status.DesiredReplicas = new(int32(7))
		a.Status.LastDecision = &v1alpha1.DecisionStatus{Time: metav1.NewMicroTime(time.Now().Add(-2*maxStatusInterval + time.Nanosecond))}
		w.object.Store(a)
		w.pass(r.now)
		if d, err := r.DesiredReplicas("ns", "web"); err != nil || d.Replicas != 7 {
			t.Errorf("%d, %v; want the leader's 7", d.Replicas, err)
		}
		a.Status.LastDecision.Time = metav1.NewMicroTime(time.Now().Add(-2 * maxStatusInterval))
		if d, err := r.DesiredReplicas("ns", "web"); !errors.Is(err, usage.ErrNoValue) {
			t.Errorf("an old decision: %d, %v", d.Replicas, err)
		}
	})
}

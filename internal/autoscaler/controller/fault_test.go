// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/aspect"
)

// A pass that panics, wherever, costs its own GPUAutoscaler the decisions of half a minute, and says so; the others decide.
func TestAPanicCostsOneWorkload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, deployment("web", 1), deployment("bad", 1))
		a := autoscaler("bad")
		a.Status = v1alpha1.GPUAutoscalerStatus{CurrentReplicas: 4, DesiredReplicas: new(int32(4)), LastDecision: &v1alpha1.DecisionStatus{Reason: "Demand", Message: "as before"}}
		bad, good := r.add(a), r.add(autoscaler("web"))
		breaks := true
		bad.route = func(*workload, map[string]struct{}) {
			if breaks {
				panic("an index out of range\x1b[2J")
			}
		}
		begun := time.Now().Add(-time.Hour)
		r.pods.Pods = append(r.pods.Pods, pod("web", "web-1", begun, ready(begun)), pod("bad", "bad-1", begun, ready(begun)))
		if pause := bad.guarded(time.Now()); pause != faultPause {
			t.Errorf("the next pass is after %v", pause)
		}
		st := statusOf(bad.status.newest(), &a.Status)
		c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionAbleToScale)
		if c == nil || c.Status != "Unknown" || c.Reason != "ControllerFault" || !strings.Contains(c.Message, "an index out of range") || !strings.Contains(c.Message, "The replicas stay") {
			t.Errorf("%+v", c)
		}
		if ready := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady); ready == nil || ready.Status != "False" || ready.Reason != "ControllerFault" {
			t.Errorf("%+v", ready)
		}
		if st.CurrentReplicas != 4 || st.LastDecision == nil || st.LastDecision.Message != "as before" {
			t.Errorf("what was known is gone: %+v", st)
		}
		if pause := good.guarded(time.Now()); pause >= faultPause || good.actuator.last == nil {
			t.Errorf("the other one made no decision, and pauses for %v", pause)
		}
		reg := prometheus.NewRegistry()
		r.meters.Register(reg)
		if err := testutil.GatherAndCompare(reg, strings.NewReader("# HELP gpupilot_faults_total Passes of GPUAutoscalers that ended with a panic: a fault of the controller. The log has the stack.\n"+
			"# TYPE gpupilot_faults_total counter\ngpupilot_faults_total 1\n"), "gpupilot_faults_total"); err != nil {
			t.Error(err)
		}
		breaks = false
		if pause := bad.guarded(time.Now()); pause >= faultPause || bad.actuator.last == nil {
			t.Errorf("it does not decide again, and pauses for %v", pause)
		}
	})
}

// A status that panics is tried again, and the writer goes on.
func TestAPanicOfAStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, deployment("web", 1))
		a := autoscaler("web")
		w := r.add(a)
		if err := r.client.Create(t.Context(), a.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		breaks := true
		w.pass(time.Now())
		p := w.status.newest()
		p.parts = append(p.parts, aspect.Part{Status: func(*v1alpha1.GPUAutoscalerStatus, *v1alpha1.GPUAutoscalerStatus) {
			if breaks {
				panic("a status")
			}
		}})
		if wait := w.status.step(t.Context()); wait != faultPause {
			t.Errorf("the next attempt is after %v", wait)
		}
		breaks = false
		if wait := w.status.step(t.Context()); wait >= faultPause || w.status.last == nil {
			t.Errorf("no status was written, the next attempt is after %v", wait)
		}
	})
}

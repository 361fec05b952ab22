// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// queried is an autoscaler of 0 to 10 replicas on a backlog, 10 for each.
func queried(name, promql string) *v1alpha1.GPUAutoscaler {
	a := autoscaler(name)
	zero, activation := int32(0), resource.MustParse("1")
	a.Spec.MinReplicas = &zero
	a.Spec.Signals = []v1alpha1.Signal{{
		Query:  &v1alpha1.QuerySignal{PromQL: promql},
		Target: &v1alpha1.Target{Value: resource.MustParse("10")}, Activation: &activation,
	}}
	return a
}

// said is the error of a query that was evaluated, which its author may read.
type said string

func (s said) Error() string  { return "the backend at 10.0.0.9 said: " + string(s) }
func (s said) Public() string { return string(s) }
func (s said) Reason() string { return "no_number" }
func (s said) Answered() bool { return true }

// answer sets the backend's answer to a query.
func (r *rig) answer(promql string, at time.Time, value float64, err error) {
	if r.deps.Query == nil {
		r.deps.Query = func(context.Context, string, string) (series.Sample, error) {
			return series.Sample{}, errors.New("not asked")
		}
	}
	key := queryKey{"ns", promql}
	x := r.queries.running[key]
	if x == nil {
		x = &queryState{cancel: func() {}}
		r.queries.running[key] = x
	}
	r.queries.storeAnswer(key, x, series.Sample{At: at, Value: value}, err)
}

func TestToAndFromZero(t *testing.T) {
	a := queried("web", "backlog")
	r := newRig(t, deployment("web", 0), a)
	w := r.add(a)
	pass := func(what string, after time.Duration, want int32) {
		t.Helper()
		w.pass(r.now.Add(after))
		if n := r.replicas("web"); n != want {
			t.Errorf("%s: %d replicas, want %d: %s", what, n, want, w.status.next.decision.Sentence())
		}
	}
	pass("before the first answer", 0, 0)
	r.answer("backlog", r.now, 1, nil)
	pass("at the activation", 0, 0)
	r.answer("backlog", r.now.Add(time.Second), 25, nil)
	pass("above it", time.Second, 3)
	for _, name := range []string{"web-1", "web-2", "web-3"} {
		r.pods.Pods = append(r.pods.Pods, pod("web", name, r.now.Add(time.Second), ready(r.now.Add(20*time.Second))))
	}
	r.answer("backlog", r.now.Add(40*time.Second), 12, nil)
	pass("less", 40*time.Second, 2)
	r.pods.Pods = r.pods.Pods[:2]
	r.answer("backlog", r.now.Add(42*time.Second), 0, said("connection refused"))
	pass("no answer, though the last is fresh", 42*time.Second, 2)
	pass("no answer for a while", 50*time.Second, 2)
	c := meta.FindStatusCondition(conditionsOf(w.status.next), v1alpha1.ConditionSignals)
	if c.Status != "False" || c.Reason != reasonNoFreshData {
		t.Errorf("condition %+v", c)
	}
	contains(t, c.Message, "no fresh value of backlog: query backlog: connection refused")
	if e := r.events[len(r.events)-1]; e.Kind != "Warning" || e.Note != c.Message {
		t.Errorf("the last event is %+v", e)
	}
	r.answer("backlog", r.now.Add(55*time.Second), 0.5, nil)
	pass("below the activation", 55*time.Second, 0)
	r.pods.Pods = nil
	r.answer("backlog", r.now.Add(60*time.Second), 3, nil)
	pass("above it again", 60*time.Second, 1)
}

// A query that fails costs its own signal only: the others may raise, and
// nothing goes down.
func TestFailingQueryAffectsOnlyItsSignal(t *testing.T) {
	a := autoscaler("web")
	a.Spec.Signals = append(a.Spec.Signals, queried("web", "backlog").Spec.Signals[0])
	r := newRig(t, deployment("web", 1), a)
	w := r.add(a)
	r.pods.Pods = append(r.pods.Pods, pod("web", "web-1", r.now.Add(-time.Hour), ready(r.now.Add(-time.Hour))))
	r.utilization(r.now.Add(-time.Second), 90, r.pods.Pods...)
	r.answer("backlog", time.Time{}, 0, said("it gives NaN"))
	w.pass(r.now)
	if n := r.replicas("web"); n != 2 {
		t.Errorf("%d replicas, want the 2 that the other signal asks for", n)
	}
	c := meta.FindStatusCondition(conditionsOf(w.status.next), v1alpha1.ConditionSignals)
	if c.Status != "True" {
		t.Errorf("condition %+v", c)
	}
	contains(t, c.Message, "no fresh value of backlog: query backlog: it gives NaN")
}

func TestNoBackend(t *testing.T) {
	a := queried("web", "backlog")
	r := newRig(t, deployment("web", 1), a)
	w := r.add(a)
	w.pass(r.now)
	c := meta.FindStatusCondition(conditionsOf(w.status.next), v1alpha1.ConditionReady)
	if c.Status != "False" {
		t.Errorf("condition %+v", c)
	}
	contains(t, c.Message, "start the controller with --prometheus-url")
	if n := r.replicas("web"); n != 1 {
		t.Errorf("scaled to %d without an answer", n)
	}
}

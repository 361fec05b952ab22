// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/google/go-cmp/cmp"
	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
	"github.com/gpupilot/gpupilot/internal/promql/scope"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
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

// asked is a scheduler whose answers are set by hand.
type asked struct {
	answers  map[queries.Key]queries.Answer
	owners   map[string][]queries.Owner // by namespace
	rejected []error
}

func (a *asked) Set(kind queries.Kind, namespace string, owners []queries.Owner) {
	if kind == queries.GPUAutoscaler {
		a.owners[namespace] = owners
	}
}

func (a *asked) Answer(_ string, key queries.Key) queries.Answer { return a.answers[key] }

func (a *asked) Rejected(err error) { a.rejected = append(a.rejected, err) }

// ask gives the rig a scheduler whose answers are set by hand.
func (r *rig) ask() *asked {
	a, ok := r.deps.Queries.(*asked)
	if !ok {
		a = &asked{answers: map[queries.Key]queries.Answer{}, owners: map[string][]queries.Owner{}}
		r.deps.Queries = a
	}
	return a
}

// answer sets the answer to a query. A problem leaves the last value.
func (r *rig) answer(promql string, at time.Time, value float64, problem string) {
	key := queries.Key{Scope: "ns", PromQL: promql}
	a := r.ask().answers[key]
	if a.Problem = problem; problem == "" {
		a.Sample, a.Evaluated = series.Sample{At: at, Value: value}, at
	}
	r.ask().answers[key] = a
}

func TestToAndFromZero(t *testing.T) {
	a := queried("web", "backlog")
	r := newRig(t, deployment("web", 0), a)
	w := r.add(a)
	pass := func(what string, after time.Duration, want int32) {
		t.Helper()
		w.pass(r.now.Add(after))
		if n := r.replicas("web"); n != want {
			t.Errorf("%s: %d replicas, want %d: %s", what, n, want, w.status.next.Decision.Sentence())
		}
	}
	pass("before the first answer", 0, 0)
	r.answer("backlog", r.now, 1, "")
	pass("at the activation", 0, 0)
	r.answer("backlog", r.now.Add(time.Second), 25, "")
	pass("above it", time.Second, 3)
	for _, name := range []string{"web-1", "web-2", "web-3"} {
		r.pods.Pods = append(r.pods.Pods, pod("web", name, r.now.Add(time.Second), ready(r.now.Add(20*time.Second))))
	}
	r.answer("backlog", r.now.Add(40*time.Second), 12, "")
	pass("less", 40*time.Second, 2)
	r.pods.Pods = r.pods.Pods[:2]
	r.answer("backlog", r.now.Add(42*time.Second), 0, "connection refused")
	pass("no answer, though the last is fresh", 42*time.Second, 2)
	pass("no answer for a while", 50*time.Second, 2)
	c := meta.FindStatusCondition(conditionsOf(w.status.next), v1alpha1.ConditionSignals)
	if c.Status != "False" || c.Reason != reasonNoFreshData {
		t.Errorf("condition %+v", c)
	}
	contains(t, c.Message, "no fresh value of backlog, so the replicas stay as they are (missingData: Hold): query backlog: connection refused")
	if e := r.events[len(r.events)-1]; e.Kind != "Warning" || e.Note != c.Message {
		t.Errorf("the last event is %+v", e)
	}
	r.answer("backlog", r.now.Add(55*time.Second), 0.5, "")
	pass("below the activation", 55*time.Second, 0)
	r.pods.Pods = nil
	r.answer("backlog", r.now.Add(60*time.Second), 3, "")
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
	r.answer("backlog", time.Time{}, 0, "it gives NaN")
	w.pass(r.now)
	if n := r.replicas("web"); n != 2 {
		t.Errorf("%d replicas, want the 2 that the other signal asks for", n)
	}
	c := meta.FindStatusCondition(conditionsOf(w.status.next), v1alpha1.ConditionSignals)
	if c.Status != "True" {
		t.Errorf("condition %+v", c)
	}
	contains(t, c.Message, "no fresh value of backlog, so no replica is removed: query backlog: it gives NaN")
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

// A query that is not allowed affects only its own object, whose condition has the
// solution.
func TestRejectedQuery(t *testing.T) {
	s, err := scope.New(scope.Config{Trusted: []string{"ops"}})
	if err != nil {
		t.Fatal(err)
	}
	f := func(namespace, promql, asked string, says ...string) {
		t.Helper()
		r := newRig(t, deployment("web", 1))
		r.deps.LimitQuery = s.Limit
		r.ask()
		a := autoscaler("web")
		a.Namespace = namespace
		a.Spec.Signals = []v1alpha1.Signal{{Preset: "vllm"}, a.Spec.Signals[0], queried("web", promql).Spec.Signals[0]}
		w := r.add(a)
		w.pass(r.now)
		r.askQueries()
		var wanted []string
		for _, o := range r.ask().owners[namespace] {
			for _, q := range o.Queries {
				wanted = append(wanted, q.Key.PromQL)
			}
		}
		c := meta.FindStatusCondition(conditionsOf(w.status.next), v1alpha1.ConditionReady)
		for _, text := range says {
			contains(t, c.Message, text)
		}
		if asked == "" {
			if c.Reason != reasonInvalid || c.Status != "False" || len(wanted) != 0 || len(r.ask().rejected) != 1 {
				t.Errorf("%s in %s: condition %+v, asked %v", promql, namespace, c, wanted)
			}
			if len(r.events) == 0 || r.events[0].Kind != "Warning" || r.events[0].Reason != reasonInvalid {
				t.Errorf("%s in %s: events %+v", promql, namespace, r.events)
			}
			return
		}
		if c.Reason == reasonInvalid || len(wanted) != 1 || wanted[0] != asked {
			t.Errorf("%s in %s: condition %+v, asked %v, want %s", promql, namespace, c, wanted, asked)
		}
	}
	f("ns", `sum(rate(x[1m])) or vector(0)`, `sum(rate(x{namespace="ns"}[1m])) or vector(0)`)
	f("ns", `x{namespace="other"}`, "", "spec.signals[2].query.promql: Invalid value: ", `selector x{namespace="other"}`, "--query-namespaces")
	f("ns", `sum(`, "", "spec.signals[2].query.promql", "parse error")
	f("ns", strings.Repeat("x", scope.MaxLength+1), "", "at most 4096")
	f("ns", strings.Repeat("x", scope.MaxLength-2)+"{(", "", "parse error", "--query-namespaces")
	f("ops", `x{namespace="other"}`, `x{namespace="other"}`)
	f("ops", `sum(`, `sum(`)
}

// The scheduler is told of all GPUAutoscalers with queries, and of those that are gone.
func TestQueriesAreHandedOver(t *testing.T) {
	r := newRig(t)
	r.cfg.Tick = 5 * time.Second
	r.discover(func(c *discovery.Config) { c.Gateways = true })
	created := metav1.Time{Time: r.now.Add(-time.Hour)}
	for _, key := range []types.NamespacedName{{Namespace: "ns", Name: "a"}, {Namespace: "ns", Name: "b"}, {Namespace: "other", Name: "a"}} {
		a := queried(key.Name, "backlog")
		a.Namespace, a.CreationTimestamp = key.Namespace, created
		r.add(a).compile(a)
	}
	r.add(autoscaler("none")).compile(autoscaler("none"))
	asked := r.ask()
	r.askQueries()
	if len(asked.owners) != 2 || len(asked.owners["ns"]) != 2 || len(asked.owners["other"]) != 1 {
		t.Fatalf("%+v", asked.owners)
	}
	o := asked.owners["other"][0]
	want := []queries.Query{{Key: queries.Key{Scope: "other", PromQL: "backlog"}, Every: 5 * time.Second}}
	if o.Name != "a" || !o.Created.Equal(created.Time) || !cmp.Equal(o.Queries, want) {
		t.Errorf("%+v, want %+v", o, want)
	}
	w := r.workloads[types.NamespacedName{Namespace: "other", Name: "a"}]
	for len(w.wake) > 0 {
		<-w.wake
	}
	if o.Changed(); len(w.wake) != 1 {
		t.Error("an answer requests no pass")
	}
	if totals, why, _ := r.totals(w.key, nil, w.plan.Load()); len(totals) != 1 || totals[0].OK || why != "" {
		t.Errorf("before the first answer: %+v, %q", totals, why)
	}
	delete(r.workloads, w.key)
	r.askQueries()
	if owners, ok := asked.owners["other"]; !ok || owners != nil {
		t.Errorf("after the last one is gone: %+v", owners)
	}
}

// A query that is 0/0 counts as what it is without requests, unless its signal has a fallback. The condition
// says which case it is.
func TestNoRequestsIsAValue(t *testing.T) {
	f := func(fallback *intstr.IntOrString, ok bool, says string) {
		t.Helper()
		r := newRig(t)
		a := queried("a", "sum(a) / sum(b)")
		a.Spec.Signals[0].Fallback = fallback
		w := r.add(a)
		w.compile(a)
		p := w.plan.Load()
		r.ask().answers[p.queries[0]] = queries.Answer{Sample: series.Sample{At: r.now}, Evaluated: r.now, NoRequests: true}
		totals, problem, noRequests := r.totals(w.key, a.Spec.Signals, p)
		if len(totals) != 1 || totals[0].OK != ok || !strings.Contains(problem+noRequests, says) || ok != (problem == "") {
			t.Errorf("fallback %v: %+v, %q, %q", fallback, totals, problem, noRequests)
		}
	}
	f(nil, true, "0/0, there are no requests: it counts as 0")
	for _, fallback := range []string{"Hold", "Max", "Ignore"} {
		f(new(intstr.FromString(fallback)), false, "0/0, there are no requests, and the signal has a fallback")
	}
	f(new(intstr.FromInt32(3)), false, "the query returns NaN: 0/0")
}

// SPDX-License-Identifier: Apache-2.0

package metricquery

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// rig is a keeper whose objects are given to changed by hand, in a bubble of
// synctest.
type rig struct {
	*Keeper
	t       *testing.T
	ctx     context.Context
	client  client.Client
	mu      sync.Mutex
	values  map[string]float64 // by namespace/query; absent: an error
	asked   map[string]int
	patches int
	leading bool
	took    time.Duration // of a PromQL query

	scheduler *queries.Scheduler
}

// unanswered is the error of a query that was not answered.
type unanswered string

func (e unanswered) Error() string  { return string(e) }
func (e unanswered) Public() string { return string(e) }
func (e unanswered) Reason() string { return "other" }
func (e unanswered) Answered() bool { return false }

// newRig makes a rig whose namespaces may have three MetricQueries.
func newRig(t *testing.T, objects ...client.Object) *rig { return newRigOf(t, 4, objects...) }

// newRigOf makes a rig with a limit of queries per namespace, of which signals have a
// quarter.
func newRigOf(t *testing.T, perNamespace int, objects ...client.Object) *rig {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, values: map[string]float64{}, asked: map[string]int{}, leading: true}
	r.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.MetricQuery{}).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				r.mu.Lock()
				r.patches++
				r.mu.Unlock()
				if err := c.SubResource(sub).Patch(ctx, obj, p, opts...); err != nil {
					return err
				}
				if _, ok := obj.(*metav1.PartialObjectMetadata); !ok {
					t.Errorf("the answer is a %T, with the spec", obj)
				}
				if _, typed := obj.(*v1alpha1.MetricQuery); typed && obj.GetName() == "bad" {
					return errors.New("decode the response, which has the malformed spec")
				}
				return nil
			},
		}).Build()
	scheduler := queries.NewScheduler(queries.SchedulerConfig{PerNamespace: perNamespace}, queries.SchedulerDeps{
		Query: func(_ context.Context, namespace, promql string) (series.Sample, error) {
			time.Sleep(r.took)
			s, err := r.read(namespace + "/" + promql)
			return series.Sample{At: s.At, Value: s.Value}, err
		},
	})
	r.scheduler = scheduler
	r.Keeper = New(Config{}, Deps{
		Queries: scheduler,
		LimitQuery: func(_, promql string) (string, bool, error) {
			if strings.HasPrefix(promql, "forbidden") {
				return "", false, errors.New("the query reads another namespace")
			}
			return promql, false, nil
		},
		Client: r.client, Leading: func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.leading
		},
		Workload: func(_ context.Context, namespace string, q *v1alpha1.MetricQueryGPU) (Sample, error) {
			return r.read(namespace + "/gpu/" + q.Metric)
		},
		Desired: func(namespace, name string) (Sample, error) { return r.read(namespace + "/autoscaler/" + name) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	r.ctx = ctx
	r.running.Go(func() { scheduler.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		r.running.Wait()
	})
	return r
}

func (r *rig) read(key string) (Sample, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked[key]++
	v, ok := r.values[key]
	if !ok {
		return Sample{}, unanswered("no answer to " + key)
	}
	return Sample{v, time.Now()}, nil
}

func (r *rig) set(key string, v float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.values[key] = v
}

func (r *rig) remove(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.values, key)
}

func (r *rig) writes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.patches
}

func (r *rig) evaluations(key string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked[key]
}

// put delivers an object, and waits until it was evaluated.
func (r *rig) put(q *v1alpha1.MetricQuery, gone bool) {
	r.t.Helper()
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(q)
	if err != nil {
		r.t.Fatal(err)
	}
	r.changed(r.ctx, &unstructured.Unstructured{Object: fields}, gone)
	synctest.Wait()
}

func (r *rig) condition(q *v1alpha1.MetricQuery) metav1.Condition {
	r.t.Helper()
	var is v1alpha1.MetricQuery
	if err := r.client.Get(r.ctx, client.ObjectKeyFromObject(q), &is); err != nil {
		r.t.Fatal(err)
	}
	if c := meta.FindStatusCondition(is.Status.Conditions, ConditionReady); c != nil {
		return *c
	}
	return metav1.Condition{}
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// query is a MetricQuery with a PromQL query of its name, created minutes after epoch.
func query(namespace, name string, minutes int) *v1alpha1.MetricQuery {
	return &v1alpha1.MetricQuery{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name), Generation: 1,
			CreationTimestamp: metav1.Time{Time: epoch.Add(time.Duration(minutes) * time.Minute)},
		},
		Spec: v1alpha1.MetricQuerySpec{Query: &v1alpha1.MetricQueryPromQL{PromQL: name}},
	}
}

func TestValuesComeFromMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := query("a", "queue", 0)
		r := newRig(t, q)
		r.set("a/queue", 5)
		r.put(q, false)
		for range 100 {
			if s, found, err := r.Metric("a", "queue"); !found || err != nil || s.Value != 5 {
				t.Fatalf("%+v, %t, %v", s, found, err)
			}
		}
		if n := r.evaluations("a/queue"); n != 1 {
			t.Errorf("100 reads evaluated the query %d times", n)
		}
		r.set("a/queue", 6)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if s, _, _ := r.Metric("a", "queue"); s.Value != 6 {
			t.Errorf("value %v after the next evaluation", s.Value)
		}
		if _, found, _ := r.Metric("b", "queue"); found {
			t.Error("another namespace has the metric")
		}
		if s, found, err := r.Object("a", "queue"); !found || err != nil || s.Value != 6 {
			t.Errorf("by the object's name: %+v, %t, %v", s, found, err)
		}
		r.put(q, true)
		if _, found, _ := r.Metric("a", "queue"); found {
			t.Error("a deleted object is served")
		}
	})
}

// One failed evaluation does not make a value disappear. Later it is absent, not frozen.
func TestMissingIsNotZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := query("a", "queue", 0)
		r := newRig(t, q)
		r.set("a/queue", 5)
		r.put(q, false)
		r.remove("a/queue")
		time.Sleep(4 * time.Second)
		if _, _, err := r.Metric("a", "queue"); err != nil {
			t.Errorf("after 4 s: %v", err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if s, found, err := r.Metric("a", "queue"); !found || err == nil || !strings.Contains(err.Error(), "no answer to a/queue") {
			t.Errorf("after 14 s: %+v, %t, %v", s, found, err)
		}
		if c := r.condition(q); c.Reason != ReasonNoValue || c.Message != "no answer to a/queue" {
			t.Errorf("condition %+v", c)
		}
		before := r.evaluations("a/queue")
		time.Sleep(time.Minute)
		if n := r.evaluations("a/queue") - before; n > 6 {
			t.Errorf("a failing query was evaluated %d times in a minute", n)
		}
		r.set("a/queue", math.NaN())
		time.Sleep(time.Minute)
		synctest.Wait()
		if c := r.condition(q); c.Reason != ReasonNoValue || !strings.Contains(c.Message, "NaN") {
			t.Errorf("condition %+v", c)
		}
	})
}

func TestTheOldestObjectHasTheMetric(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		older, newer := query("a", "older", 0), query("a", "newer", 1)
		older.Spec.MetricName, newer.Spec.MetricName = "load", "load"
		r := newRig(t, older, newer)
		r.set("a/older", 1)
		r.set("a/newer", 2)
		r.put(newer, false)
		if s, _, _ := r.Metric("a", "load"); s.Value != 2 {
			t.Errorf("alone: %v", s)
		}
		time.Sleep(2 * time.Second)
		r.put(older, false)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if s, _, _ := r.Metric("a", "load"); s.Value != 1 {
			t.Errorf("beside an older one: %v", s)
		}
		if c := r.condition(newer); c.Reason != ReasonConflict || !strings.Contains(c.Message, "older MetricQuery older") {
			t.Errorf("condition %+v", c)
		}
		before := r.evaluations("a/newer")
		time.Sleep(10 * time.Second)
		if r.evaluations("a/newer") != before {
			t.Error("an object in conflict is evaluated")
		}
		r.put(older, true)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if s, _, err := r.Metric("a", "load"); s.Value != 2 {
			t.Errorf("after the older one was deleted: %v, %v", s, err)
		}
		if c := r.condition(newer); c.Status != metav1.ConditionTrue {
			t.Errorf("condition %+v", c)
		}
	})
}

// A namespace with too many objects loses its newest ones, and no other namespace's.
func TestLimitPerNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for i := range 5 {
			r.set(fmt.Sprintf("a/q%d", i), 1)
			r.put(query("a", fmt.Sprintf("q%d", i), 10-i), false)
		}
		r.set("b/q", 1)
		r.put(query("b", "q", 99), false)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		const limit = "(Limit): not evaluated: older MetricQueries of namespace a already have 3 different queries; the rest of the 4 of --queries-per-namespace is for GPUAutoscalers"
		for i := range 5 {
			name, wants := fmt.Sprintf("q%d", i), i >= 2 // the oldest are q4, q3, q2
			_, found, err := r.Object("a", name)
			if !found || (err == nil) != wants || !wants && !strings.Contains(err.Error(), limit) {
				t.Errorf("%s: %t, %v", name, found, err)
			}
			if _, found, _ := r.Metric("a", name); found != wants {
				t.Errorf("the metric %s is served: %t", name, found)
			}
		}
		again := query("a", "again", 99) // has the metric of one beyond the limit
		again.Spec.MetricName = "q0"
		r.put(again, false)
		if _, found, err := r.Object("a", "again"); !found || !strings.Contains(err.Error(), limit) {
			t.Errorf("%t, %v", found, err)
		}
		for _, p := range r.Problems() {
			if p.Reason != ReasonLimit {
				t.Errorf("%+v", p)
			}
		}
		if n := len(r.Problems()); n != 3 {
			t.Errorf("%d problems, want those of q0, q1 and again", n)
		}

		// The signals of a GPUAutoscaler count in the same limit.
		r.scheduler.Set(queries.GPUAutoscaler, "a", []queries.Owner{{Name: "web", Created: epoch, Queries: []queries.Query{
			{Key: queries.KeyOf("a", "x", false)}, {Key: queries.KeyOf("a", "y", false)}, {Key: queries.KeyOf("a", "q4", false)},
		}}})
		if _, _, err := r.Object("a", "q2"); err == nil || !strings.Contains(err.Error(), "older GPUAutoscalers and MetricQueries of namespace a already have 4 different queries") {
			t.Errorf("beside older signals: %v", err)
		}
		if _, _, err := r.Metric("a", "q3"); err != nil {
			t.Error(err)
		}
		if _, _, err := r.Metric("b", "q"); err != nil {
			t.Error(err)
		}
	})
}

// A query that its namespace may not run is told so, is not evaluated, and uses nothing of
// the limit.
func TestRejectedQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := query("a", "forbidden", 0)
		r := newRig(t, bad)
		r.put(bad, false)
		if c := r.condition(bad); c.Reason != ReasonNoValue || c.Message != "the query reads another namespace" {
			t.Errorf("condition %+v", c)
		}
		if _, found, err := r.Metric("a", "forbidden"); !found || err == nil {
			t.Errorf("%t, %v", found, err)
		}
		for i := range 3 {
			r.set(fmt.Sprintf("a/q%d", i), 1)
			r.put(query("a", fmt.Sprintf("q%d", i), 1), false)
		}
		time.Sleep(time.Minute)
		if _, _, err := r.Metric("a", "q2"); err != nil || r.evaluations("a/forbidden")+r.evaluations("a/") != 0 {
			t.Errorf("%v; it was evaluated %d times", err, r.evaluations("a/forbidden")+r.evaluations("a/"))
		}
	})
}

// Objects without PromQL count in the limit, too, and are read at their interval.
func TestLimitOfObjectsWithoutPromQL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for i := range 4 {
			q := query("a", fmt.Sprintf("q%d", i), i)
			q.Spec = v1alpha1.MetricQuerySpec{GPU: &v1alpha1.MetricQueryGPU{
				Metric: fmt.Sprintf("m%d", i), ScaleTargetRef: v1alpha1.CrossVersionObjectReference{Kind: "Deployment", Name: "x"},
			}}
			if i%2 == 1 {
				q.Spec = v1alpha1.MetricQuerySpec{Autoscaler: &v1alpha1.MetricQueryAutoscaler{Name: fmt.Sprintf("m%d", i)}}
			}
			r.set(fmt.Sprintf("a/gpu/m%d", i), float64(i))
			r.put(q, false)
		}
		time.Sleep(time.Minute - time.Millisecond)
		if s, _, err := r.Metric("a", "q2"); err != nil || s.Value != 2 {
			t.Errorf("%+v, %v", s, err)
		}
		if _, _, err := r.Object("a", "q1"); err == nil || !strings.Contains(err.Error(), "no answer to a/autoscaler/m1") {
			t.Errorf("%v", err)
		}
		if _, _, err := r.Object("a", "q3"); err == nil || !strings.Contains(err.Error(), ReasonLimit) {
			t.Errorf("%v", err)
		}
		for key, want := range map[string]int{"a/gpu/m0": 60, "a/autoscaler/m1": 60, "a/gpu/m2": 60, "a/autoscaler/m3": 0} {
			if n := r.evaluations(key); n != want {
				t.Errorf("%s was read %d times in a minute, want %d", key, n, want)
			}
		}
	})
}

// Nothing is written about an object before it was evaluated: after a restart its last
// value stays in the status.
func TestStatusBeforeTheFirstEvaluation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := query("a", "queue", 0)
		r := newRig(t, q)
		r.took = 8 * time.Second
		r.set("a/queue", 5)
		r.put(q, false)
		time.Sleep(7 * time.Second)
		if n := r.writes(); n != 0 || len(r.Problems()) != 0 {
			t.Errorf("%d writes, problems %+v", n, r.Problems())
		}
		time.Sleep(2 * time.Second)
		if n := r.writes(); n != 1 || r.condition(q).Status != metav1.ConditionTrue {
			t.Errorf("%d writes, condition %+v", n, r.condition(q))
		}
	})
}

func TestInvalidObjects(t *testing.T) {
	f := func(want string, change func(q *v1alpha1.MetricQuery)) {
		t.Helper()
		q := query("a", "q", 0)
		change(q)
		metric := q.Spec.MetricName
		if metric == "" {
			metric = q.Name
		}
		if err := validate(&q.Spec, metric); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	gpu := func(change func(*v1alpha1.MetricQueryGPU)) func(q *v1alpha1.MetricQuery) {
		return func(q *v1alpha1.MetricQuery) {
			q.Spec.Query = nil
			q.Spec.GPU = &v1alpha1.MetricQueryGPU{Metric: "Utilization", ScaleTargetRef: v1alpha1.CrossVersionObjectReference{Kind: "Deployment", Name: "x"}}
			change(q.Spec.GPU)
		}
	}
	f("spec: 0 of query, gpu and autoscaler", func(q *v1alpha1.MetricQuery) { q.Spec.Query = nil })
	f("spec: 2 of query, gpu and autoscaler", func(q *v1alpha1.MetricQuery) { q.Spec.Autoscaler = &v1alpha1.MetricQueryAutoscaler{Name: "x"} })
	f("spec.metricName: gpupilot_desired_replicas is", func(q *v1alpha1.MetricQuery) { q.Spec.MetricName = MetricOfAutoscalers })
	f(`spec.metricName: "a/b" is not`, func(q *v1alpha1.MetricQuery) { q.Spec.MetricName = "a/b" })
	f("spec.gpu: metric", gpu(func(g *v1alpha1.MetricQueryGPU) { g.Metric = "" }))
	f(`spec.gpu.stat: "p100"`, gpu(func(g *v1alpha1.MetricQueryGPU) { g.Stat = "p100" }))
	f("spec.gpu.window: 48h0m0s", gpu(func(g *v1alpha1.MetricQueryGPU) { g.Window = &metav1.Duration{Duration: 48 * time.Hour} }))
}

// A malformed object is told so in its condition, and disturbs no other.
func TestMalformedObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad, good := query("a", "bad", 0), query("a", "good", 1)
		r := newRig(t, bad, good)
		r.set("a/good", 1)
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"query": "not an object"}}}
		u.SetNamespace("a")
		u.SetName("bad")
		u.SetUID(bad.UID)
		r.changed(r.ctx, u, false)
		r.put(good, false)
		if c := r.condition(bad); c.Reason != ReasonInvalid {
			t.Errorf("condition %+v", c)
		}
		if _, _, err := r.Metric("a", "good"); err != nil {
			t.Error(err)
		}
		before := r.writes()
		time.Sleep(time.Minute)
		if n := r.writes() - before; n > 0 {
			t.Errorf("%d writes of statuses that have not changed", n)
		}
	})
}

func TestStatusIsWrittenRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := query("a", "queue", 0)
		r := newRig(t, q)
		r.set("a/queue", 0)
		r.put(q, false)
		for i := range 60 {
			r.set("a/queue", float64(i))
			time.Sleep(2 * time.Second)
		}
		if n := r.writes(); n > 6 {
			t.Errorf("%d writes in two minutes", n)
		}
		before := r.writes()
		time.Sleep(5 * time.Minute)
		if n := r.writes() - before; n > 1 {
			t.Errorf("%d writes while the value did not change", n)
		}
		var is v1alpha1.MetricQuery
		if err := r.client.Get(r.ctx, client.ObjectKeyFromObject(q), &is); err != nil || is.Status.Value == nil || is.Status.Value.Value() != 59 || is.Status.MetricName != "queue" {
			t.Errorf("status %+v, %v", is.Status, err)
		}
		r.mu.Lock()
		r.leading = false
		r.mu.Unlock()
		before = r.writes()
		r.set("a/queue", 99)
		time.Sleep(5 * time.Minute)
		if r.writes() != before {
			t.Error("a replica that does not lead writes")
		}
	})
}

// Followed queries are evaluated twice per interval: a few of a namespace, and slow ones
// less often.
func TestFollowedQueries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRigOf(t, 100)
		r.Keeper.followers.share = 2
		perMinute := func(key string) int {
			before := r.evaluations(key)
			time.Sleep(time.Minute)
			synctest.Wait()
			return r.evaluations(key) - before
		}
		var stops []func()
		for i := range 4 {
			key := fmt.Sprintf("a/q%d", i)
			r.set(key, 1)
			stops = append(stops, r.Follow("a", fmt.Sprintf("q%d", i))) // before the object exists
			r.put(query("a", fmt.Sprintf("q%d", i), i), false)
		}
		f := func(want ...int) {
			t.Helper()
			for i, n := range want {
				if got := perMinute(fmt.Sprintf("a/q%d", i)); got < n-2 || got > n+2 {
					t.Errorf("q%d is evaluated %d times in a minute, want %d", i, got, n)
				}
			}
		}
		f(120, 120, 30, 30)
		second := r.Follow("a", "q1")
		stops[1]()
		stops[1]() // twice is as once
		f(120, 120, 30, 30)
		second()
		stops[3]()
		f(120, 30, 120, 30) // q2 takes the place of q1
		stops[0]()
		stops[2]()
		f(30, 30, 30, 30)
		if len(r.followers.by) != 0 || r.followers.taken != 0 {
			t.Errorf("%v remains, %d are taken", r.followers.by, r.followers.taken)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.took = 400 * time.Millisecond
		r.set("a/q", 1)
		r.put(query("a", "q", 0), false)
		defer r.Follow("a", "q")()
		time.Sleep(time.Minute)
		if n := r.evaluations("a/q"); n < 30 || n > 40 { // 0.4 s of 1.6 s
			t.Errorf("a query of 0.4 s is evaluated %d times in a minute", n)
		}
		desired := query("a", "desired", 1)
		desired.Spec = v1alpha1.MetricQuerySpec{Autoscaler: &v1alpha1.MetricQueryAutoscaler{Name: "chat"}}
		r.put(desired, false)
		defer r.Follow("a", "desired")()
		time.Sleep(time.Minute)
		if n := r.evaluations("a/autoscaler/chat"); n < 118 || n > 122 { // also without a value
			t.Errorf("a followed MetricQuery of an autoscaler is evaluated %d times in a minute", n)
		}
	})
}

// A place that becomes free goes to a query of another namespace, which runs more often
// from then on.
func TestAPlaceGoesToAnotherNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.Keeper.followers.total = 1
		var stops []func()
		for _, namespace := range []string{"a", "b"} {
			r.set(namespace+"/q", 1)
			r.put(query(namespace, "q", 0), false)
			stops = append(stops, r.Follow(namespace, "q"))
		}
		perMinute := func(want int) {
			t.Helper()
			before := r.evaluations("b/q")
			if time.Sleep(time.Minute); r.evaluations("b/q")-before < want-2 || r.evaluations("b/q")-before > want+2 {
				t.Errorf("evaluated %d times in a minute, want %d", r.evaluations("b/q")-before, want)
			}
		}
		perMinute(30)
		stops[0]()
		perMinute(120)
		stops[1]()
		perMinute(30)
	})
}

// The total bounds all namespaces together. A place that becomes free goes to the same
// namespace, and else to another one.
func TestFollowersInAll(t *testing.T) {
	f := followers{share: 2, total: 3, by: map[string]*namespaceFollowers{}}
	key := func(namespace, name string) types.NamespacedName {
		return types.NamespacedName{Namespace: namespace, Name: name}
	}
	for _, k := range []types.NamespacedName{key("a", "1"), key("a", "2"), key("b", "1")} {
		if !f.add(k) {
			t.Errorf("%s has no place", k)
		}
	}
	for _, k := range []types.NamespacedName{key("a", "3"), key("b", "2"), key("b", "2")} {
		if f.add(k) {
			t.Errorf("%s has a place", k)
		}
	}
	if next, ok := f.remove(key("a", "1")); !ok || next != key("a", "3") {
		t.Errorf("the place of a/1 goes to %s", next)
	}
	if next, ok := f.remove(key("a", "2")); !ok || next != key("b", "2") {
		t.Errorf("the place of a/2 goes to %s", next)
	}
	for _, k := range []types.NamespacedName{key("b", "1"), key("b", "2"), key("b", "2"), key("a", "3")} {
		f.remove(k)
	}
	if len(f.by) != 0 || f.taken != 0 {
		t.Errorf("%v remains, %d are taken", f.by, f.taken)
	}
}

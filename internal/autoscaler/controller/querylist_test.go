// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
	"github.com/gpupilot/gpupilot/internal/promql/scope"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// backend is a PromQL backend that takes a time for each query and remembers
// when it was asked what. It runs in a bubble of synctest.
type backend struct {
	mu     sync.Mutex
	took   func(promql string) time.Duration // nil: none
	fails  func(promql string) error         // nil: never
	begun  map[string][]time.Time            // by query
	now    map[string]int                    // evaluations at this moment, by the query's first word
	most   map[string]int                    // of them, at any moment; "" for all
	inAll  int
	answer float64
}

func (b *backend) query(ctx context.Context, _, promql string) (series.Sample, error) {
	who, _, _ := strings.Cut(promql, " ")
	b.mu.Lock()
	b.begun[promql] = append(b.begun[promql], time.Now())
	b.inAll++
	b.now[who]++
	b.most[who], b.most[""] = max(b.most[who], b.now[who]), max(b.most[""], b.inAll)
	took, fails := b.took, b.fails
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.inAll--
		b.now[who]--
		b.mu.Unlock()
	}()
	if took != nil {
		select {
		case <-time.After(took(promql)):
		case <-ctx.Done():
			return series.Sample{}, ctx.Err()
		}
	}
	if fails != nil {
		if err := fails(promql); err != nil {
			return series.Sample{}, err
		}
	}
	return series.Sample{At: time.Now(), Value: b.answer}, nil
}

// times are when a query was asked, since the beginning.
func (b *backend) times(promql string, since time.Time) (out []time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, at := range b.begun[promql] {
		out = append(out, at.Sub(since))
	}
	return out
}

// asking is a rig in a bubble whose queries run until f returns.
func asking(t *testing.T, f func(ctx context.Context, r *rig, b *backend)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		b := &backend{begun: map[string][]time.Time{}, now: map[string]int{}, most: map[string]int{}, answer: 1}
		r.deps.Query = b.query
		ctx, cancel := context.WithCancel(t.Context())
		defer r.running.Wait()
		defer cancel()
		f(ctx, r, b)
	})
}

// asks adds a GPUAutoscaler with a query, created so long after the others.
func (r *rig) asks(namespace, name, promql string, created time.Duration) *workload {
	a := queried(name, promql)
	a.Namespace = namespace
	a.CreationTimestamp = metav1.Time{Time: time.Unix(1_800_000_000, 0).Add(created)}
	w := r.add(a)
	w.compile(a)
	return w
}

// A query is evaluated repeatedly, once for all workloads that have it, and stops when
// none has it.
func TestEqualQueriesRunOnce(t *testing.T) {
	asking(t, func(ctx context.Context, r *rig, b *backend) {
		w := []*workload{r.asks("ns", "a", "x", 0), r.asks("ns", "b", "x", 0), r.asks("ns", "c", "y", 0)}
		began := time.Now()
		r.queries.sync(ctx)
		r.queries.sync(ctx) // it changes nothing to follow again
		synctest.Wait()
		for i := range w {
			if len(w[i].wake) != 1 {
				t.Errorf("workload %d was not told of the answer", i)
			}
		}
		time.Sleep(5*queryEvery + queryEvery/2)
		for _, promql := range []string{"x", "y"} {
			if got, want := fmt.Sprint(b.times(promql, began)), "[0s 2s 4s 6s 8s 10s]"; got != want {
				t.Errorf("%s was asked at %s, want %s", promql, got, want)
			}
		}
		for _, name := range []string{"a", "b"} {
			delete(r.workloads, types.NamespacedName{Namespace: "ns", Name: name})
		}
		r.queries.sync(ctx)
		time.Sleep(10 * queryEvery)
		if got := b.times("x", began); len(got) != 6 {
			t.Errorf("x was asked at %v; nobody asks it after 11s", got)
		}
		if got := b.times("y", began); len(got) != 16 {
			t.Errorf("y was asked at %v, want 16 times", got)
		}
		if _, why := r.queries.newestAnswer("ns", queryKey{"ns", "x"}); why != "" || len(r.queries.running) != 1 {
			t.Errorf("%q, %d questions", why, len(r.queries.running))
		}
	})
}

// The same text is two queries in two namespaces, and one where both are trusted.
func TestQueriesAreSharedAmongTrustedNamespacesOnly(t *testing.T) {
	asking(t, func(ctx context.Context, r *rig, b *backend) {
		s, err := scope.New(scope.Config{Trusted: []string{"ops", "ml"}})
		if err != nil {
			t.Fatal(err)
		}
		r.deps.LimitQuery = s.Limit
		for _, ns := range []string{"team-a", "team-b", "ops", "ml"} {
			r.asks(ns, "web", "backlog", 0)
		}
		r.queries.sync(ctx)
		synctest.Wait()
		for promql, want := range map[string]int{"backlog": 1, `backlog{namespace="team-a"}`: 1, `backlog{namespace="team-b"}`: 1} {
			if got := len(b.begun[promql]); got != want {
				t.Errorf("%s was asked %d times, want %d", promql, got, want)
			}
		}
		if len(b.begun) != 3 {
			t.Errorf("asked %v", b.begun)
		}
		if x := r.queries.running[queryKey{"", "backlog"}]; x == nil || x.namespace != "ml" {
			t.Errorf("the shared query: %+v", x)
		}
	})
}

// Slow queries of one namespace, however many, delay no other.
func TestSlowQueriesDelayNoOtherNamespace(t *testing.T) {
	asking(t, func(ctx context.Context, r *rig, b *backend) {
		b.took = func(promql string) time.Duration {
			if strings.HasPrefix(promql, "slow") {
				return 5 * time.Second
			}
			return 0
		}
		b.fails = func(promql string) error {
			if strings.HasPrefix(promql, "slow") {
				return errors.New("no answer within 5s")
			}
			return nil
		}
		for i := range 100 {
			r.asks("hostile", fmt.Sprint("a", i), fmt.Sprint("slow ", i), 0)
		}
		r.asks("ns", "web", "quick", 0)
		began := time.Now()
		r.queries.sync(ctx)
		time.Sleep(time.Minute - time.Second)
		got := b.times("quick", began)
		for i, at := range got {
			if at != time.Duration(i)*queryEvery {
				t.Errorf("quick was asked at %v, not every %s", got, queryEvery)
				break
			}
		}
		if len(got) != 30 || b.most["slow"] != queries.ForBackend().Share || b.most[""] > queries.ForBackend().Slots {
			t.Errorf("quick was asked %d times; at most %d queries of the slow namespace ran at a time, and %d in all", len(got), b.most["slow"], b.most[""])
		}
	})
}

// A query that waits long says so, and keeps its place: each one has its turn.
func TestAQueryThatWaitsSaysSo(t *testing.T) {
	asking(t, func(ctx context.Context, r *rig, b *backend) {
		b.took = func(string) time.Duration { return 5 * time.Second }
		for i := range 60 {
			r.asks("ns", fmt.Sprint("a", i), fmt.Sprint("slow ", i), 0)
		}
		r.queries.sync(ctx)
		time.Sleep(queryWait + time.Second)
		late := 0
		for i := range 60 {
			if _, why := r.queries.newestAnswer("ns", queryKey{"ns", fmt.Sprint("slow ", i)}); strings.Contains(why, "has waited for 30 s") {
				late++
			}
		}
		if late < 32 || late > 36 { // 4 begin every 5 s, the last ones at 30 s
			t.Errorf("%d queries say that they wait", late)
		}
		time.Sleep(2 * time.Minute)
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.begun) != 60 {
			t.Errorf("%d of 60 queries were evaluated", len(b.begun))
		}
	})
}

// However many namespaces have slow queries, each waits for its turn only.
func TestNamespacesTakeTurns(t *testing.T) {
	asking(t, func(ctx context.Context, r *rig, b *backend) {
		b.took = func(promql string) time.Duration {
			if promql == "quick" {
				return 0
			}
			return time.Second
		}
		for ns := range 5 {
			for i := range 50 + 100*ns {
				if i == 100 {
					break // the limit of a namespace
				}
				r.asks(fmt.Sprint("ns", ns), fmt.Sprint("a", i), fmt.Sprintf("ns%d %d", ns, i), 0)
			}
		}
		r.queries.sync(ctx)
		time.Sleep(time.Second / 2)
		w := r.asks("late", "web", "quick", 0)
		began := time.Now()
		r.queries.sync(ctx)
		time.Sleep(100 * time.Second)
		if got := b.times("quick", began); len(got) == 0 || got[0] > 1500*time.Millisecond {
			t.Errorf("the namespace that came last was first asked at %v", got)
		}
		if len(w.wake) != 1 {
			t.Error("it was not told of the answer")
		}
		asked := map[string]int{}
		for promql, at := range b.begun {
			who, _, _ := strings.Cut(promql, " ")
			asked[who] += len(at)
		}
		for ns := range 5 {
			if n := asked[fmt.Sprint("ns", ns)]; n < 150 || n > 170 { // 8 slots for 100.5 s, fifths of 804
				t.Errorf("ns%d was asked %d times, want a fifth: %v", ns, n, asked)
				break
			}
		}
		if b.most[""] > queries.ForBackend().Slots {
			t.Errorf("%d queries at a time", b.most[""])
		}
	})
}

// A query that is not answered backs off alone, and returns to its cadence with
// the first answer. One that is evaluated and has no value keeps its cadence.
func TestFailingQueriesBackOff(t *testing.T) {
	asking(t, func(ctx context.Context, r *rig, b *backend) {
		down := true
		b.fails = func(promql string) error {
			switch {
			case promql == "down" && down:
				return errors.New("connection refused")
			case promql == "empty":
				return said("it gives nothing")
			}
			return nil
		}
		for _, promql := range []string{"down", "empty", "fine"} {
			r.asks("ns", promql, promql, 0)
		}
		began := time.Now()
		r.queries.sync(ctx)
		time.Sleep(3 * time.Minute)
		b.mu.Lock()
		down = false
		b.mu.Unlock()
		synctest.Wait()
		got := b.times("down", began)
		if len(got) < 7 {
			t.Fatalf("it was asked at %v", got)
		}
		for i, want := range []float64{2, 4, 8, 16, 30, 30} {
			if gap := (got[i+1] - got[i]).Seconds(); gap < want*(1-queryJitter) || gap > want*(1+queryJitter) {
				t.Errorf("pause %d is %.1f s, want %g s ± %g %%", i, gap, want, 100*queryJitter)
			}
		}
		for _, promql := range []string{"empty", "fine"} {
			if n := len(b.times(promql, began)); n != 91 && n != 90 {
				t.Errorf("%s was asked %d times in 3 min, want 90", promql, n)
			}
		}
		_, why := r.queries.newestAnswer("ns", queryKey{"ns", "down"})
		if why == "" || strings.Contains(why, "refused") {
			t.Errorf("the author reads %q of an error that is not public", why)
		}
		time.Sleep(2 * queryPause)
		got = b.times("down", began)
		if gap := got[len(got)-1] - got[len(got)-2]; gap != queryEvery {
			t.Errorf("after an answer it is asked every %s, want %s", gap, queryEvery)
		}
		if reading, why := r.queries.newestAnswer("ns", queryKey{"ns", "down"}); why != "" || !reading.OK {
			t.Errorf("%+v, %q", reading, why)
		}
	})
}

// A query that takes long occupies its slot for half of the time at most.
func TestSlowAnswers(t *testing.T) {
	asking(t, func(ctx context.Context, r *rig, b *backend) {
		b.took = func(string) time.Duration { return 3 * time.Second }
		r.asks("ns", "web", "x", 0)
		began := time.Now()
		r.queries.sync(ctx)
		time.Sleep(14 * time.Second)
		if got, want := fmt.Sprint(b.times("x", began)), "[0s 6s 12s]"; got != want {
			t.Errorf("asked at %s, want %s", got, want)
		}
	})
}

// The number of different queries per namespace is limited. The newest object beyond
// the limit reports it; the other queries, also of other namespaces, are evaluated.
func TestTooManyQueries(t *testing.T) {
	asking(t, func(ctx context.Context, r *rig, b *backend) {
		r.queries.maxPerNamespace = 3
		reg := prometheus.NewRegistry()
		r.queries.meter.register(reg, r.queries)
		last := r.asks("ns", "a-new", "x4", time.Hour)
		for i := range 3 {
			r.asks("ns", fmt.Sprint("z-old", i), fmt.Sprint("x", i), 0)
		}
		r.asks("ns", "b-new", "x0", 2*time.Hour) // not different
		r.asks("other", "web", "x4", 3*time.Hour)
		r.queries.sync(ctx)
		r.queries.sync(ctx)
		synctest.Wait()
		_, failed := r.queries.totals(types.NamespacedName{Namespace: "ns"}, last.plan.Load())
		if want := "query x4: not evaluated: older GPUAutoscalers of namespace ns already have 3 different queries, the limit of --queries-per-namespace"; failed != want {
			t.Errorf("%q, want %q", failed, want)
		}
		if len(r.queries.running) != 4 || len(b.begun["x4"]) != 1 {
			t.Errorf("%d questions, x4 was asked %d times", len(r.queries.running), len(b.begun["x4"]))
		}
		want := map[string]float64{
			"gpupilot_query_signals ns asked": 3, "gpupilot_query_signals ns rejected": 1, "gpupilot_query_signals other asked": 1,
			"gpupilot_query_rejections_total limit": 1, "gpupilot_query_rejections_total syntax": 0,
			"gpupilot_queries_total  answered": 4, "gpupilot_query_duration_seconds ns": 3, "gpupilot_query_duration_seconds other": 1,
		}
		metricsAre(t, reg, want)

		// Room for it.
		delete(r.workloads, types.NamespacedName{Namespace: "ns", Name: "z-old1"})
		delete(r.workloads, types.NamespacedName{Namespace: "other", Name: "web"})
		r.queries.sync(ctx)
		synctest.Wait()
		if reading, why := r.queries.newestAnswer("ns", queryKey{"ns", "x4"}); why != "" || !reading.OK {
			t.Errorf("%+v, %q", reading, why)
		}
		for _, gone := range []string{"gpupilot_query_signals other asked", "gpupilot_query_signals ns rejected", "gpupilot_query_duration_seconds other"} {
			if v, ok := gather(t, reg)[gone]; ok {
				t.Errorf("%s is %g, want none", gone, v)
			}
		}
	})
}

func metricsAre(t *testing.T, reg prometheus.Gatherer, want map[string]float64) {
	t.Helper()
	got := gather(t, reg)
	for name, v := range want {
		if n, ok := got[name]; !ok || n != v {
			t.Errorf("%s is %g (%v), want %g", name, n, ok, v)
		}
	}
}

// gather are the metrics by their name and the values of their labels.
func gather(t *testing.T, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				out[name] = m.GetCounter().GetValue()
			case dto.MetricType_GAUGE:
				out[name] = m.GetGauge().GetValue()
			case dto.MetricType_SUMMARY:
				out[name] = float64(m.GetSummary().GetSampleCount())
			}
		}
	}
	return out
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
		r.deps.Query = func(context.Context, string, string) (series.Sample, error) { return series.Sample{}, nil }
		a := autoscaler("web")
		a.Namespace = namespace
		a.Spec.Signals = []v1alpha1.Signal{{Preset: "vllm"}, a.Spec.Signals[0], queried("web", promql).Spec.Signals[0]}
		w := r.add(a)
		w.pass(r.now)
		wanted, _ := r.queries.wantedQueries()
		c := meta.FindStatusCondition(conditionsOf(w.status.next), v1alpha1.ConditionReady)
		for _, text := range says {
			contains(t, c.Message, text)
		}
		if asked == "" {
			if c.Reason != reasonInvalid || c.Status != "False" || len(wanted) != 0 {
				t.Errorf("%s in %s: condition %+v, asked %v", promql, namespace, c, wanted)
			}
			if len(r.events) == 0 || r.events[0].Kind != "Warning" || r.events[0].Reason != reasonInvalid {
				t.Errorf("%s in %s: events %+v", promql, namespace, r.events)
			}
			return
		}
		for key := range wanted {
			if key.promql != asked || len(wanted) != 1 {
				t.Errorf("%s in %s: asked %v, want %s", promql, namespace, wanted, asked)
			}
		}
		if c.Reason == reasonInvalid || len(wanted) != 1 {
			t.Errorf("%s in %s: condition %+v, asked %v", promql, namespace, c, wanted)
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

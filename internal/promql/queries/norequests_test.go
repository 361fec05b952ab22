// SPDX-License-Identifier: Apache-2.0

package queries_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
	"github.com/gpupilot/gpupilot/internal/promql/rules"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

var noon = time.Unix(1_800_000_000, 0)

// quiet is an engine over two servers of which no request has ended in the last ten minutes, one
// that is busy, and series of other values.
func quiet(t testing.TB) *engine.Engine {
	store := rules.NewStore(time.Hour, 1<<30)
	for i := range 61 {
		at := noon.Add(time.Duration(i-60) * 10 * time.Second)
		var samples []rules.Sample
		add := func(value float64, set ...string) {
			samples = append(samples, rules.Sample{Labels: labels.FromStrings(set...), Value: value})
		}
		for _, pod := range []string{"a", "b"} {
			add(400, "__name__", "idle_sum", "pod", pod)
			add(40, "__name__", "idle_count", "pod", pod)
			for le, n := range map[string]float64{"0.1": 10, "1": 40, "+Inf": 40} {
				add(n, "__name__", "idle_bucket", "pod", pod, "le", le)
			}
		}
		for pod, n := range map[string]float64{"a": 0, "b": float64(i)} {
			add(3*n, "__name__", "mixed_sum", "pod", pod)
			add(n, "__name__", "mixed_count", "pod", pod)
			for le, k := range map[string]float64{"0.1": 0, "1": n, "+Inf": n} {
				add(k, "__name__", "mixed_bucket", "pod", pod, "le", le)
			}
		}
		add(50, "__name__", "waiting")
		add(math.NaN(), "__name__", "broken")
		add(0, "__name__", "zero")
		add(math.Inf(1), "__name__", "endless")
		if err := store.Append(at, samples); err != nil {
			t.Fatal(err)
		}
	}
	return engine.New(engine.Config{}, store)
}

// A quotient of 0 by 0 is 0, where it stands in the query. What is NaN for another reason stays NaN.
func TestQuotientsWithoutRequests(t *testing.T) {
	e := quiet(t)
	value := func(promql string) string {
		v, err := e.Number(t.Context(), engine.Query{PromQL: promql}, noon)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("%.3g", v.Value)
	}
	const none, nan = "not rewritten", "the query returns NaN"
	f := func(promql, want string) {
		t.Helper()
		if got := value(promql); got != nan {
			t.Errorf("%s is %s as written: the case shows nothing", promql, got)
		}
		got := none
		if text, ok := queries.WithoutRequests(promql); ok {
			got = value(text)
		}
		if got != want {
			t.Errorf("%s is %s, want %s", promql, got, want)
		}
	}
	const mean = `sum(rate(idle_sum[1m])) / sum(rate(idle_count[1m]))`
	f(mean, "0")
	f(`(`+mean+`) * 1000`, "0")
	f(mean+` or vector(0)`, "0")
	f(`clamp_min(`+mean+`, 2)`, "2")
	f(`max by (pod) (rate(idle_sum{pod="a"}[1m]) / rate(idle_count[1m]))`, "0")
	f(`sum(rate(idle_sum[1m])) / on () group_left () sum(rate(idle_count[1m]))`, "0")
	f(`scalar(sum(rate(idle_sum[1m]))) / scalar(sum(rate(idle_count[1m])))`, "0")
	f(`sum(rate(idle_sum[1m])) / scalar(sum(rate(idle_count[1m])))`, "0")
	f(`(sum(rate(idle_sum[1m])) / sum(rate(idle_count[1m]))) / sum(rate(idle_count[1m]))`, "0")
	f(`histogram_quantile(0.95, sum by (le) (rate(idle_bucket[1m])))`, "0")
	f(`histogram_quantile(0.95, sum by (le) (rate(idle_bucket[1m]))) > 0 or histogram_quantile(0.95, sum by (le) (rate(idle_bucket[1m])))`, "0")
	// Other load still counts: a queue beside the quotient, and a busy server beside an idle one.
	f(mean+` + sum(waiting)`, "50")
	f(`avg(rate(mixed_sum[1m]) / rate(mixed_count[1m]))`, "1.5")
	f(`sum(histogram_quantile(0.5, sum by (pod, le) (rate(mixed_bucket[1m]))))`, "0.55")
	// What is not 0/0 of two readings.
	f(`broken`, none)
	f(`sum(broken) / sum(zero)`, nan)
	f(`sum(zero) / sum(broken)`, nan)
	f(mean+` + sum(broken)`, nan)
	f(`sum(endless) / sum(endless)`, nan)
	f(`sum(waiting) / sum(zero) - sum(waiting) / sum(zero)`, nan)
	f(`sum(zero) % sum(zero)`, none)
	f(`avg_over_time((`+mean+`)[5m:1m])`, none) // of the past
	f(`histogram_quantile(NaN, sum by (le) (rate(mixed_bucket[1m])))`, nan)
}

// No number is changed by rewriting its query, and nested quotients end.
func TestRewritingChangesNoNumber(t *testing.T) {
	e := quiet(t)
	for _, promql := range []string{
		`sum(rate(mixed_sum[1m])) / sum(rate(mixed_count[1m]))`, `sum(waiting) / 5`, `sum(waiting) / sum(waiting) / 5`, `histogram_quantile(0.5, sum by (le) (rate(mixed_bucket[1m])))`,
		`1 / sum(waiting)`, `max(rate(mixed_sum{pod="b"}[1m]) / on (pod) rate(mixed_count[1m]))`, `sum(waiting) / (sum(zero) + 1)`,
	} {
		text, ok := queries.WithoutRequests(promql)
		if !ok {
			if strings.HasSuffix(promql, "/ 5") {
				continue
			}
			t.Errorf("%s is not rewritten", promql)
			continue
		}
		want, err1 := e.Number(t.Context(), engine.Query{PromQL: promql}, noon)
		got, err2 := e.Number(t.Context(), engine.Query{PromQL: text}, noon)
		if err1 != nil || err2 != nil || math.Abs(got.Value-want.Value) > 1e-9 {
			t.Errorf("%s is %v (%v), rewritten %v (%v)", promql, want.Value, err1, got.Value, err2)
		}
	}
	if text, ok := queries.WithoutRequests(strings.Repeat("(a/(b+", 40) + "c" + strings.Repeat("))", 40)); ok {
		t.Errorf("a query of %d bytes", len(text))
	}
}

// The rewritten query is one, selects the same series, and is not much longer.
func FuzzWithoutRequests(f *testing.F) {
	for _, seed := range []string{`sum(a)/sum(b)`, `a / on (x) group_left (y) b`, `scalar(a)/scalar(b)`, `histogram_quantile(0.9, sum by (le) (rate(a[1m])))`, `(a/b)[5m:1m]`, `a/b/c/d`, `1/2`, `"x"`, `histogram_avg(a)/2`} {
		f.Add(seed)
	}
	p := parser.NewParser(parser.Options{EnableExperimentalFunctions: true, ExperimentalDurationExpr: true, EnableExtendedRangeSelectors: true, EnableBinopFillModifiers: true})
	f.Fuzz(func(t *testing.T, promql string) {
		text, ok := queries.WithoutRequests(promql)
		if !ok {
			return
		}
		before, err1 := p.ParseExpr(promql)
		after, err2 := p.ParseExpr(text)
		if err1 != nil || err2 != nil || len(text) > 16<<10 {
			t.Fatalf("%q becomes %q: %v, %v", promql, text, err1, err2)
		}
		seen := map[string]bool{}
		for _, s := range parser.ExtractSelectors(before) {
			seen[fmt.Sprint(s)] = true
		}
		for _, s := range parser.ExtractSelectors(after) {
			if !seen[fmt.Sprint(s)] {
				t.Errorf("%q becomes %q with the selector %v", promql, text, s)
			}
		}
	})
}

// The scheduler says which answer is 0/0, which series are NaN, and which have ended.
func TestTheSchedulerSaysWhichCaseItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := quiet(t)
		var ended atomic.Bool
		s := queries.NewScheduler(queries.SchedulerConfig{}, queries.SchedulerDeps{Query: func(ctx context.Context, _, promql string) (series.Sample, error) {
			if promql == "gone" && !ended.Load() {
				return series.Sample{At: time.Now(), Value: 1}, nil
			}
			return e.Number(ctx, engine.Query{PromQL: promql}, noon)
		}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		defer func() { cancel(); <-done }()
		of := func(promql string) queries.Key { return queries.Key{Scope: "ml", PromQL: promql} }
		const mean = `sum(rate(idle_sum[1m])) / sum(rate(idle_count[1m]))`
		var list []queries.Query
		for _, promql := range []string{mean, `sum(broken) / sum(zero)`, "gone", "never"} {
			list = append(list, queries.Query{Key: of(promql)})
		}
		s.Set(queries.GPUAutoscaler, "ml", []queries.Owner{{Name: "a", Queries: list}})
		time.Sleep(3 * queries.Every)
		ended.Store(true)
		time.Sleep(3 * queries.Every)
		synctest.Wait()
		f := func(promql string, noRequests bool, says string) {
			t.Helper()
			if a := s.Answer("ml", of(promql)); a.NoRequests != noRequests || (a.Problem == "") != (says == "") || !strings.Contains(a.Problem, says) {
				t.Errorf("%s: %+v, want %v and %q", promql, a, noRequests, says)
			}
		}
		f(mean, true, "")
		f(`sum(broken) / sum(zero)`, false, "a series is NaN")
		f("gone", false, "no series matches; it is stale: the last value is of ")
		f("never", false, "no series matches")
	})
}

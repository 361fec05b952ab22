// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/base/weight"
)

// The steps that are counted before a range is evaluated are those that Prometheus's
// engine evaluates.
func TestStepsAreThoseOfTheEngine(t *testing.T) {
	e := New(Config{}, tenants(t))
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		from := now.Add(-time.Duration(random.Int64N(100_000)) * time.Millisecond)
		step := time.Duration(1+random.Int64N(20_000)) * time.Millisecond
		to := from.Add(time.Duration(random.Int64N(200_000)) * time.Millisecond)
		if (to.Sub(from) / step) >= 11_000 {
			continue
		}
		m, _, err := e.Range(t.Context(), Query{PromQL: "vector(1)"}, from, to, step)
		if err != nil {
			t.Fatal(err)
		}
		steps, err := e.checkSpan(span{from: from, to: to, step: step, isRange: true})
		if err != nil || int(steps) != len(m[0].Floats) {
			t.Errorf("%s by %s: %v steps, %v; the engine makes %d", to.Sub(from), step, steps, err, len(m[0].Floats))
		}
	}
}

// Each limit holds to the last one that is allowed.
func TestLimitsToTheLast(t *testing.T) {
	store := tenants(t)
	for i := range 10 {
		store.add(t, fmt.Sprintf(`ten{i="%d"}`, i), 1)
	}
	e := New(Config{MaxSeries: 10, MaxLength: 1000, MaxDepth: 10, MaxSteps: 100, SubqueryStep: 2 * time.Second}, store)
	f := func(what, text string, limit Limit) {
		t.Helper()
		if _, _, err := e.Instant(t.Context(), Query{PromQL: text}, now); limitOf(err) != limit || limit == "" && err != nil {
			t.Errorf("%s: %v; want the limit %q", what, err, limit)
		}
	}
	f("10 series", `ten`, "")
	f("11 series", `ten or up{pod="a-0"}`, LimitSeries)
	f("10 series, of which a limit to namespaces hides some", `ten or up{namespace="none"}`, "")
	f("1000 bytes", `up #`+strings.Repeat("x", 996), "")
	f("1001 bytes", `up #`+strings.Repeat("x", 997), LimitLength)
	f("10 levels", strings.Repeat("(", 9)+"up"+strings.Repeat(")", 9), "")
	f("11 levels", strings.Repeat("(", 10)+"up"+strings.Repeat(")", 10), LimitLength)
	f("100,000 steps of a subquery", `count_over_time(vector(1)[99999s:1s])`, "")
	f("100,001 steps", `count_over_time(vector(1)[100000s:1s])`, LimitSteps)
	f("100,000 steps of the default", `count_over_time(vector(1)[199999s:])`, "")
	f("100,001 steps of the default", `count_over_time(vector(1)[200000s:])`, LimitSteps)
	f("an expression of the most instructions", `up{a=~"`+strings.Repeat(`.`, 900)+`"}`, "")
	g := func(what string, steps int, limit Limit) {
		t.Helper()
		_, _, err := e.Range(t.Context(), Query{PromQL: "vector(1)"}, now, now.Add(time.Duration(steps-1)*time.Second), time.Second)
		if limitOf(err) != limit || limit == "" && err != nil {
			t.Errorf("%s: %v; want the limit %q", what, err, limit)
		}
	}
	g("one step", 1, "")
	g("100 steps", 100, "")
	g("101 steps", 101, LimitSteps)
	g("the end before the start", 0, LimitSteps)
	// Each is counted by its kind.
	var programs weight.Counts
	counted := New(Config{Programs: &programs}, store)
	for _, text := range []string{strings.Repeat("-", 66) + "1", `up{x=~"` + strings.Repeat("[^/]", 11) + `"}`, `sum_over_time((vector(1) + vector(1) + vector(1))[1d:1s])`} {
		if _, err := counted.check(text, span{from: now, to: now}); limitOf(err) == "" {
			t.Errorf("%s: %v", text, err)
		}
	}
	programs.Each(func(kind string, n uint64) {
		if want := map[string]uint64{"query": 2, "regexp": 1}[kind]; n != want {
			t.Errorf("%d of kind %s are counted, want %d", n, kind, want)
		}
	})
	// A function over a subquery: what the engine works through without a look at the clock.
	w := New(Config{}, store)
	h := func(window string, limit Limit) {
		t.Helper()
		if _, err := w.check(`sum_over_time(vector(1)[`+window+`:1s])`, span{now, now.Add(9999 * time.Second), time.Second, true}); limitOf(err) != limit || limit == "" && err != nil {
			t.Errorf("10,000 steps of %s: %v; want the limit %q", window, err, limit)
		}
	}
	h("200s", "")
	h("201s", LimitSteps)
	if _, err := w.check(`vector(1)[2000s:1s]`, span{from: now, to: now}); err != nil {
		t.Errorf("a subquery that is evaluated once: %v", err)
	}
}

// The labels that a query can make by its text are charged before it runs, and are never
// fewer than those that Prometheus's engine makes.
func TestGrowthOfLabels(t *testing.T) {
	store := &memory{}
	long := strings.Repeat("v", 200)
	store.add(t, `m{a="`+long+`",b="`+long+`"}`, 1)
	e := New(Config{}, store)
	f := func(text string, growth float64) {
		t.Helper()
		p, err := e.check(text, span{})
		if err != nil || p.growth != growth {
			t.Errorf("%s: labels grow %v times, %v; want %v", text, p.growth, err, growth)
			return
		}
		v, _, err := e.Instant(t.Context(), Query{PromQL: text}, now)
		if err != nil {
			t.Fatal(err)
		}
		size := float64(store.series[0].Labels().ByteSize())
		for _, s := range v.(promql.Vector) {
			if got, most := float64(s.Metric.ByteSize()), (size+float64(p.literals))*p.growth; got > most {
				t.Errorf("%s: the labels have %v bytes, estimated are %v", text, got, most)
			}
		}
	}
	f(`m`, 1)
	f(`sum(rate(m[1m]))`, 1)
	f(`label_replace(m, "c", "x", "a", ".*")`, 1)
	f(`label_replace(m, "c", "$1", "a", "(.*)")`, 2)
	f(`label_replace(m, "c", "$1$1$1", "a", "(.*)")`, 4)
	f(`label_replace(label_replace(m, "c", "$1$1$1", "a", "(.*)"), "d", "$1", "c", "(.*)")`, 8)
	f(`label_join(m, "c", "-")`, 1)
	f(`label_join(m, "c", "-", "a")`, 2)
	f(`label_join(m, "c", "-", "a", "b", "a")`, 4)
	// A budget that one series uses up.
	tight := New(Config{MaxBytes: seriesBytes + labelCopies*int64(store.series[0].Labels().ByteSize())}, store)
	for text, limit := range map[string]Limit{`m`: "", `m or m`: LimitMemory, `label_replace(m, "c", "x", "a", ".*")`: "", `label_replace(m, "c", "$1", "a", "(.*)")`: LimitMemory} {
		if _, _, err := tight.Instant(t.Context(), Query{PromQL: text}, now); limitOf(err) != limit {
			t.Errorf("%s: %v; want the limit %q", text, err, limit)
		}
	}
}

// A query is narrowed within what its namespaces show, and the storage hears its metrics.
func TestNarrowAndWant(t *testing.T) {
	var wanted, narrowed []string
	fail := false
	cfg := Config{
		Want: func(payer fair.Payer, namespaces []string, metrics ...string) {
			of := strings.Join(namespaces, "+")
			if namespaces == nil {
				of = "all"
			}
			wanted = append(wanted, payer.String()+"/"+of+":"+strings.Join(metrics, ","))
		},
		Narrow: func(ctx context.Context, visible storage.Queryable, text string, from, to time.Time) (string, error) {
			q, err := visible.Querier(from.UnixMilli(), to.UnixMilli())
			if err != nil {
				return "", err
			}
			n := 0
			for set := q.Select(ctx, false, nil, labels.MustNewMatcher(labels.MatchEqual, "__name__", "up")); set.Next(); n++ {
			}
			narrowed = append(narrowed, fmt.Sprint(text, " ", n, " ", to.Sub(from)))
			if fail {
				return "", errors.New("cannot")
			}
			return strings.Replace(text, "up", `up{pod="a-1"}`, 1), nil
		},
	}
	e := New(cfg, tenants(t))
	f := func(q Query, want string) {
		t.Helper()
		if v, _, err := e.Instant(t.Context(), q, now); err != nil || v.String() != want {
			t.Errorf("%+v: %v, %v; want %s", q, v, err, want)
		}
	}
	q := Query{PromQL: `sum(up)`, Payer: fair.Namespace("p"), Namespaces: []string{"team-a"}}
	f(q, `{} => 6 @[1800000000000]`)
	fail = true
	f(q, `{} => 9 @[1800000000000]`)
	q.Namespaces = nil
	f(q, `{} => 30 @[1800000000000]`)
	q.PromQL = `vector(1)`
	f(q, `{} => 1 @[1800000000000]`)
	q.PromQL = `up{pod="b-0"} or {__name__="down"} or {__name__=~"x.*"}`
	if _, _, err := e.Range(t.Context(), q, now.Add(-time.Minute), now, time.Second); err != nil {
		t.Fatal(err)
	}
	if want := []string{"p/team-a:up", "p/team-a:up", "p/all:up", "p/all:up,down"}; !slices.Equal(wanted, want) {
		t.Errorf("the storage heard of %q, want %q", wanted, want)
	}
	want := []string{"sum(up) 2 0s", "sum(up) 2 0s", "sum(up) 4 0s", "vector(1) 4 0s", q.PromQL + " 4 1m0s"}
	if !slices.Equal(narrowed, want) {
		t.Errorf("narrowed %q, want %q", narrowed, want)
	}
}

// A query's own lookback and timeout count if they are shorter.
func TestLookbackAndTimeout(t *testing.T) {
	e := New(Config{Timeout: time.Minute, Lookback: 10 * time.Second}, tenants(t))
	f := func(lookback time.Duration, age time.Duration, want int) {
		t.Helper()
		v, _, err := e.Instant(t.Context(), Query{PromQL: "up", Lookback: lookback}, now.Add(age))
		if err != nil || len(v.(promql.Vector)) != want {
			t.Errorf("a lookback of %s after %s: %v, %v", lookback, age, v, err)
		}
	}
	f(0, 9*time.Second, 4)
	f(0, 10*time.Second, 0)
	f(2*time.Second, time.Second, 4)
	f(2*time.Second, 2*time.Second, 0)
	for q, want := range map[time.Duration]time.Duration{0: time.Minute, -1: time.Minute, time.Second: time.Second, time.Hour: time.Minute} {
		if got := e.timeout(Query{Timeout: q}); got != want {
			t.Errorf("a timeout of %s is %s, want %s", q, got, want)
		}
	}
}

// A query that is cancelled while it works through many samples ends between two of them.
func TestCancelWithinASeries(t *testing.T) {
	store := &memory{}
	store.add(t, `m`, make([]float64, 3*checkEvery)...)
	e := New(Config{}, store)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	q, err := e.limit(Query{}, plan{growth: 1}).Querier(math.MinInt64, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	set := q.Select(ctx, false, nil, labels.MustNewMatcher(labels.MatchEqual, "__name__", "m"))
	if !set.Next() {
		t.Fatal(set.Err())
	}
	it := set.At().Iterator(nil)
	n := 0
	for ; it.Next() != 0; n++ {
		if n == checkEvery {
			cancel()
		}
	}
	if n != 2*checkEvery-1 || !errors.Is(it.Err(), context.Canceled) || set.Next() || !errors.Is(set.Err(), context.Canceled) || set.Next() {
		t.Errorf("%d samples of %d were read after the query was cancelled: %v, %v", n, 3*checkEvery, it.Err(), set.Err())
	}
	if again := set.At().Iterator(it); again != it || again.Err() != nil {
		t.Error("an iterator that is used again keeps its error")
	}
}

// /metrics names a bounded number of payers, and has each result.
func TestMeters(t *testing.T) {
	e := New(Config{MaxLength: 10}, tenants(t))
	for i := range maxPayers + 20 {
		_, _, _ = e.Instant(t.Context(), Query{PromQL: "up + up + up", Payer: fair.Namespace(fmt.Sprintf("p-%03d", i))}, now)
	}
	_, _, _ = e.Instant(t.Context(), Query{PromQL: "up"}, now)
	_, _, _ = e.Instant(t.Context(), Query{PromQL: "sum("}, now)
	_, _, _ = e.Instant(t.Context(), Query{PromQL: "up+on()up"}, now)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, _ = e.Instant(gone, Query{PromQL: "up"}, now)
	text, err := testutil.CollectAndFormat(e, expfmt.TypeTextPlain, "gpupilot_promql_queries_total", "gpupilot_promql_limited_total", "gpupilot_promql_running")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`gpupilot_promql_limited_total{limit="length",payer="p-000"} 1`, `gpupilot_promql_limited_total{limit="length",payer="p-099"} 1`, `gpupilot_promql_limited_total{limit="length",payer="other"} 20`,
		`gpupilot_promql_queries_total{result="limited"} 120`, `gpupilot_promql_queries_total{result="success"} 1`, `gpupilot_promql_queries_total{result="syntax"} 1`,
		`gpupilot_promql_queries_total{result="failed"} 1`, `gpupilot_promql_queries_total{result="canceled"} 1`, `gpupilot_promql_running{slots="shared"} 0`, `gpupilot_promql_running{slots="reserved"} 0`,
	} {
		if !strings.Contains(string(text), want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "p-100") {
		t.Error("a payer too many is named")
	}
}

// Where a query names exported_pod and so on, all its selectors ask for these labels.
func TestExportedOwnersAreAskedFor(t *testing.T) {
	m := &memory{}
	m.add(t, `x{pod="a",exported_pod="a"}`, 1)
	m.add(t, `y{pod="a",exported_pod="a"}`, 1)
	e := New(Config{}, m)
	f := func(text string, want int) {
		t.Helper()
		m.exported = 0
		v, _, err := e.Instant(t.Context(), Query{PromQL: text}, now)
		if err != nil || m.exported != want || v.String() == "" {
			t.Errorf("%s: %v, %d selectors ask, want %d", text, err, m.exported, want)
		}
	}
	f(`x * on(pod) y`, 0)
	f(`x{pod="a"} * on(exported_pod) y`, 2)
	f(`x * on(pod) group_left(exported_pod) y`, 2)
	f(`x + y{exported_pod="a"}`, 2)
	f(`avg by (exported_pod) (round(avg_over_time(x[1m])))`, 1)
	f(`label_replace(x, "pod", "$1", "exported_container", "(.*)")`, 1)
	f(`label_replace(x, "pod", "$1", "exported_node", "(.*)")`, 0)
}

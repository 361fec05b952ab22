// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/prometheus/promql"
)

// tenants is a storage with series of two namespaces, and one of none.
func tenants(t testing.TB) *memory {
	m := &memory{}
	m.add(t, `up{namespace="team-a",pod="a-0"}`, 1, 2, 3)
	m.add(t, `up{namespace="team-a",pod="a-1"}`, 4, 5, 6)
	m.add(t, `up{namespace="team-b",pod="b-0"}`, 7, 8, 9)
	m.add(t, `up{node="n"}`, 10, 11, 12)
	return m
}

func TestInstantAndRange(t *testing.T) {
	e := New(Config{}, tenants(t))
	v, notes, err := e.Instant(t.Context(), Query{PromQL: `topk(1, sum by (namespace) (up))`}, now)
	if want := "{} => 12 @[1800000000000]"; err != nil || len(notes) > 0 || v.String() != want {
		t.Errorf("instant: %v, %v, %v", v, notes, err)
	}
	m, _, err := e.Range(t.Context(), Query{PromQL: `sum(up)`}, now.Add(-2*time.Second), now, time.Second)
	if want := "{} =>\n22 @[1799999998000]\n26 @[1799999999000]\n30 @[1800000000000]"; err != nil || m.String() != want {
		t.Errorf("range: %v, %v", m, err)
	}
	if v, _, err = e.Instant(t.Context(), Query{PromQL: `1+1`}, now); err != nil || v.String() != "scalar: 2 @[1800000000000]" {
		t.Errorf("scalar: %v, %v", v, err)
	}
}

// A query reads only its namespaces' series, however it is written.
func TestNamespaces(t *testing.T) {
	for _, dishonest := range []bool{false, true} {
		store := tenants(t)
		store.dishonest = dishonest
		e := New(Config{}, store)
		f := func(text string, namespaces []string, want float64) {
			t.Helper()
			v, _, err := e.Instant(t.Context(), Query{PromQL: text, Namespaces: namespaces}, now)
			got := 0.0
			if vector, ok := v.(promql.Vector); ok {
				for _, s := range vector {
					got += s.F
				}
			}
			if err != nil || got != want {
				t.Errorf("%s of %v: %v, %v; want %v", text, namespaces, v, err, want)
			}
		}
		f(`up`, nil, 30)
		f(`up`, []string{}, 0)
		f(`up`, []string{""}, 0)
		f(`up`, []string{"team-a"}, 9)
		f(`up`, []string{"team-a", "team-b"}, 18)
		f(`up`, []string{"team-.*"}, 0)
		f(`up`, []string{"team-a|team-b", ""}, 0)
		f(`up`, []string{"team-.*", "team.a"}, 0)
		f(`up`, []string{"", "team-b"}, 9)
		f(`sum({__name__=~".+"})`, []string{"team-b"}, 9)
		f(`label_replace(up, "namespace", "team-a", "", "")`, []string{"team-b"}, 9)
		f(`max_over_time(up[10s:1s])`, []string{"team-b"}, 9)
		f(`up offset 1s`, []string{"team-b"}, 8)
		f(`up and on() vector(1)`, []string{"team-b"}, 9)
		f(`absent(up)`, []string{"team-c"}, 1)
		if !dishonest {
			f(`up{namespace="team-a"}`, []string{"team-b"}, 0)
			f(`up{namespace=~".*"}`, []string{"team-b"}, 9)
			f(`up{namespace=""}`, []string{"team-b"}, 0)
		}
	}
}

// A storage that returns the labels of the grouping alone must return the namespace too.
func TestTheNamespaceIsInTheGrouping(t *testing.T) {
	store := tenants(t)
	e := New(Config{}, Join(store, &memory{}))
	for text, want := range map[string][]string{`sum(up)`: {"namespace"}, `sum by(pod)(up)`: {"pod", "namespace"}, `sum without(pod)(up)`: {"pod"}} {
		if _, _, err := e.Instant(t.Context(), Query{PromQL: text, Namespaces: []string{"team-a"}}, now); err != nil {
			t.Fatal(err)
		}
		if got := store.hints.Grouping; !slices.Equal(got, want) {
			t.Errorf("%s: the storage groups by %q; want %q", text, got, want)
		}
	}
}

// What a query exceeds is an error of its own.
func TestLimits(t *testing.T) {
	store := tenants(t)
	for i := range 50 {
		store.add(t, fmt.Sprintf(`many{namespace="team-a",pod="p-%d",long="%s"}`, i, strings.Repeat("x", 1000)), 1, 2)
	}
	e := New(Config{MaxSamples: 200, MaxSeries: 40, MaxBytes: 100_000, MaxLength: 4096, MaxSteps: 100}, store)
	f := func(limit Limit, text string) {
		t.Helper()
		_, _, err := e.Instant(t.Context(), Query{PromQL: text, Payer: fair.Namespace("team-a")}, now)
		if limitOf(err) != limit {
			t.Errorf("%.80s: %v, want the limit %q", text, err, limit)
		}
	}
	f("", `sum(up)`)
	f(LimitSeries, `up or up or up or up or up or up or up or up or up or up or up`)
	f(LimitMemory, `many{pod=~"p-[0-3]."}`)
	f(LimitSamples, `sum_over_time(vector(1)[300s:1s])`)
	f(LimitSteps, `sum_over_time(vector(1)[300d:1s])`)
	f(LimitSteps, `max_over_time(sum_over_time(vector(1)[5h:1s])[5h:1s])`)
	f(LimitLength, `up + `+strings.Repeat("1", 4096))
	f(LimitLength, strings.Repeat("(", 70)+"up"+strings.Repeat(")", 70))
	f(LimitLength, `up{pod=~"`+strings.Repeat("(?:(?:a{31}){31})", 200)+`"}`)
	nested := `up`
	for range 20 {
		nested = `label_join(` + nested + `,"pod","","pod","pod","pod")`
	}
	f(LimitMemory, nested)
	nested = `vector(1)`
	for range 20 {
		nested = `label_replace(` + nested + `,"pod","x$1$1$1$1","pod","(.*)")`
	}
	f(LimitMemory, nested)
	if _, _, err := e.Range(t.Context(), Query{PromQL: "up"}, now.Add(-time.Hour), now, time.Second); limitOf(err) != LimitSteps {
		t.Errorf("3,601 steps: %v", err)
	}
	for _, step := range []time.Duration{0, -1, time.Microsecond} {
		if _, _, err := e.Range(t.Context(), Query{PromQL: "up"}, now, now, step); limitOf(err) != LimitSteps {
			t.Errorf("step %d: %v", step, err)
		}
	}
	if _, _, err := e.Range(t.Context(), Query{PromQL: "up"}, time.Unix(0, 0), time.Unix(4e15, 0), 100*365*24*time.Hour); limitOf(err) != LimitSteps {
		t.Errorf("a range of a hundred million years: %v", err)
	}
	var syntax *SyntaxError
	if _, _, err := e.Instant(t.Context(), Query{PromQL: "sum("}, now); !errors.As(err, &syntax) {
		t.Errorf("a query that cannot be parsed: %v", err)
	}
	got, err := testutil.CollectAndFormat(e, expfmt.TypeTextPlain, "gpupilot_promql_limited_total")
	if err != nil || !strings.Contains(string(got), `gpupilot_promql_limited_total{limit="memory",payer="team-a"} 3`) {
		t.Errorf("metrics: %v\n%s", err, got)
	}
}

// A query that ends by its timeout, or whose client has gone, frees its slot.
func TestSlotsAreFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := tenants(t)
		store.before = func(ctx context.Context) { <-ctx.Done() } // hangs
		e := New(Config{Timeout: time.Second, Concurrency: 1}, store)
		for range 3 {
			if _, _, err := e.Instant(t.Context(), Query{PromQL: "up"}, now); limitOf(err) != LimitTime {
				t.Errorf("a hanging query: %v", err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		var canceled promql.ErrQueryCanceled
		if _, _, err := e.Instant(ctx, Query{PromQL: "up"}, now); !errors.As(err, &canceled) {
			t.Errorf("a cancelled query: %v", err)
		}
		store.before = func(context.Context) { panic("of the storage") }
		if _, _, err := e.Instant(t.Context(), Query{PromQL: "up"}, now); err == nil || strings.Contains(err.Error(), "limit") {
			t.Errorf("a panic: %v", err)
		}
		store.before = nil
		if _, _, err := e.Instant(t.Context(), Query{PromQL: "up"}, now); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// A payer that fills the queue does not keep others out, and never reserved queries.
func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := tenants(t)
		store.before = func(ctx context.Context) { <-ctx.Done() }
		e := New(Config{Timeout: time.Minute, Concurrency: 2}, store)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var mu sync.Mutex
		refused := 0
		for range 50 {
			all.Go(func() {
				if _, _, err := e.Instant(ctx, Query{PromQL: "up", Payer: fair.Namespace("greedy")}, now); limitOf(err) == LimitSlots {
					mu.Lock()
					refused++
					mu.Unlock()
				}
			})
		}
		synctest.Wait()
		if running, waiting := e.slots.Counts(); running != 1 || waiting != maxWaitingPayer {
			t.Errorf("greedy has %d slots and %d waiting queries", running, waiting)
		}
		store.before = nil
		for _, q := range []Query{{PromQL: "up", Payer: fair.Namespace("other")}, {PromQL: "up", Payer: fair.Namespace("greedy"), Reserved: true}} {
			if _, _, err := e.Instant(t.Context(), q, now); err != nil {
				t.Errorf("%+v: %v", q, err)
			}
		}
		cancel()
		all.Wait()
		if refused != 50-1-maxWaitingPayer {
			t.Errorf("%d queries were refused", refused)
		}
		if running, waiting := e.slots.Counts(); running != 0 || waiting != 0 {
			t.Errorf("%d slots are lost, %d waiters", running, waiting)
		}
	})
}

// Queries of users are paid by the namespaces that they read, whoever sends them.
func TestNamespacesPay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := tenants(t)
		store.before = func(ctx context.Context) { <-ctx.Done() }
		e := New(Config{Timeout: time.Minute, Concurrency: 4}, store)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		start := func(namespaces []string) {
			all.Go(func() { _, _, _ = e.Instant(ctx, Query{PromQL: "up", Namespaces: namespaces}, now) })
		}
		f := func(wantRunning, wantWaiting int) {
			t.Helper()
			synctest.Wait()
			if running, waiting := e.slots.Counts(); running != wantRunning || waiting != wantWaiting {
				t.Errorf("%d queries run and %d wait, want %d and %d", running, waiting, wantRunning, wantWaiting)
			}
		}
		for range 20 {
			start([]string{"team-a"})
		}
		f(2, 18)
		start([]string{"team-a", "team-b"}) // team-b has the fewest
		f(3, 18)
		start(nil)
		f(4, 18)
		cancel()
		all.Wait()
		f(0, 0)
		e = New(Config{}, store)
		for _, q := range []Query{{}, {Namespaces: []string{"team-a"}}, {Namespaces: []string{}}, {Payer: fair.Operator("some rules")}} {
			want := AllNamespaces
			if q.Namespaces != nil {
				want = fair.Namespace(strings.Join(q.Namespaces, ""))
			}
			if q.Payer != (fair.Payer{}) {
				want = q.Payer
			}
			if got := e.payerOf(q); got != want {
				t.Errorf("%+v is paid by %q, want %q", q, got, want)
			}
		}
	})
}

// Texts are parsed in turns, before their queries wait: a payer with many does not keep out another one.
func TestTextsAreParsedInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(Config{}, tenants(t))
		for range maxChecks / 4 {
			release, err := e.checks.Acquire(t.Context(), fair.Request{Payer: fair.Namespace("greedy")})
			if err != nil {
				t.Fatal(err)
			}
			defer release()
		}
		for payer, want := range map[string]Limit{"greedy": LimitSlots, "quiet": ""} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			q := Query{PromQL: "up", Payer: fair.Namespace(payer)}
			_, ofFormat := e.Format(ctx, q)
			_, _, ofQuery := e.Instant(ctx, q, now)
			_, _, ofSeries := e.Series(ctx, q, Selection{Match: []string{"up"}, From: now, To: now})
			if limitOf(ofFormat) != want || limitOf(ofQuery) != want || limitOf(ofSeries) != want {
				t.Errorf("%s: %v, %v, %v; want the limit %q", payer, ofFormat, ofQuery, ofSeries, want)
			}
		}
	})
}

// The timeout of a reserved query begins with its evaluation. Waiting has a bound and an
// error of its own. A caller with a slot does not wait.
func TestWaitingIsNotEvaluation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(Config{Timeout: 20 * time.Second}, tenants(t))
		q := Query{PromQL: "up", Payer: fair.Namespace("ns"), Reserved: true, Timeout: time.Second}
		hold := func(d time.Duration) {
			release, err := e.reserved.Acquire(t.Context(), fair.Request{Payer: fair.Namespace("ns")})
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(d, release)
		}
		hold(10 * time.Second)
		began := time.Now()
		if _, _, err := e.Instant(t.Context(), q, now); err != nil || time.Since(began) != 10*time.Second {
			t.Errorf("after a wait of %s: %v", time.Since(began), err)
		}
		hold(time.Minute)
		began = time.Now()
		if _, _, err := e.Instant(t.Context(), q, now); limitOf(err) != LimitSlots || time.Since(began) != maxReservedWait {
			t.Errorf("after a wait of %s: %v", time.Since(began), err)
		}
		q.HasSlot = true
		if _, _, err := e.Instant(t.Context(), q, now); err != nil {
			t.Errorf("with a slot: %v", err)
		}
	})
}

// A query's samples take at most an eighth of a small container.
func TestMaxSamples(t *testing.T) {
	f := func(limit int64, limited bool, want int) {
		t.Helper()
		if got := MaxSamples(limit, limited); got != want {
			t.Errorf("limit %d (%v): %d samples, want %d", limit, limited, got, want)
		}
	}
	f(0, false, 5_000_000)
	f(1<<30, true, 5_000_000)
	f(256<<20, true, 2<<20)
}

// SPDX-License-Identifier: Apache-2.0

package past

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/internal/promql/samples"
	"github.com/gpupilot/gpupilot/internal/window/history"
)

const chatServing = `{__name__="replicas", name="chat", namespace="ml", state="serving"}`

// A minute has a point at its end, if the windows have no sample in it.
func TestMerge(t *testing.T) {
	stale := math.Float64frombits(0x7ff0000000000002)
	f := func(name, want string, minutes, full []samples.Sample) {
		t.Helper()
		var got []string
		for _, s := range merge(nil, minutes, full) {
			got = append(got, fmt.Sprintf("%g=%g", float64(s.T)/60000, s.V))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	s := func(minutes, v float64) samples.Sample { return samples.Sample{T: int64(minutes * 60000), V: v} }
	f("nothing", "", nil, nil)
	f("minutes only", "1=10 2=20", []samples.Sample{s(1, 10), s(2, 20)}, nil)
	f("samples only", "1.5=15", nil, []samples.Sample{s(1.5, 15)})
	f("the seam", "1=10 2=20 2.5=25 3.5=35", []samples.Sample{s(1, 10), s(2, 20), s(3, 30), s(4, 40)}, []samples.Sample{s(2.5, 25), s(3.5, 35)})
	f("a sample at the end of a minute is of that minute", "1=10 2=21", []samples.Sample{s(1, 10), s(2, 20)}, []samples.Sample{s(2, 21)})
	f("a gap of the windows", "0.5=5 2=20 3.5=35", []samples.Sample{s(1, 10), s(2, 20), s(4, 40)}, []samples.Sample{s(0.5, 5), s(3.5, 35)})
	f("a stale marker", "0.9=9 1.1=NaN 3=30", []samples.Sample{s(1, 10), s(3, 30)}, []samples.Sample{s(0.9, 9), s(1.1, stale)})
	f("a stale marker where a minute ends", "0.9=9 2=20", []samples.Sample{s(2, 20)}, []samples.Sample{s(0.9, 9), s(2, stale)})
}

func TestMinutesComeBeforeTheWindows(t *testing.T) {
	r := newRig(t, engine.Config{})
	for before := 20; before > 0; before-- {
		r.record("ml", "chat", before, serving(float64(before)))
	}
	r.expose(at(2.5), now, 99, false)
	got := r.samples(at(30), now, equals("__name__", "replicas"))[chatServing]
	words := strings.Fields(got)
	// The minute of -3 to -2 has samples from -2.5 on.
	if want := "19=20 18=19 17=18"; len(words) != 17+150 || !strings.HasPrefix(got, want) || words[16] != "3=4" || words[17] != "2.5=99" {
		t.Errorf("%d samples: %s, want 167 that begin with %s", len(words), got, want)
	}
	got = r.samples(at(12), at(10), equals("__name__", "replicas"))[chatServing]
	if want := "12=13 11=12 10=11"; got != want {
		t.Errorf("between 12 and 10 minutes before are %q, want %q", got, want)
	}
	// One value a minute, without a gap and without old values at the seam.
	answer, err := r.query(`replicas{namespace="ml"}`, at(5), now.Add(-time.Second), time.Minute)
	if want := map[string]string{chatServing: "5=6 4=5 3=4 2=99 1=99"}; err != nil || cmp.Diff(want, answer) != "" {
		t.Errorf("%v, %v; want %v", answer, err, want)
	}
	answer, err = r.query(`count_over_time(replicas[30m])`, now, now.Add(-time.Second), 0)
	if want := map[string]string{`{name="chat", namespace="ml", state="serving"}`: "167"}; err != nil || cmp.Diff(want, answer) != "" {
		t.Errorf("%v, %v; want %v", answer, err, want)
	}
}

// A missing minute is neither zero nor the value before for more than the lookback.
func TestMissingMinutesAreStale(t *testing.T) {
	r := newRig(t, engine.Config{})
	for _, before := range []int{40, 39, 38, 12, 11} {
		r.record("ml", "chat", before, serving(float64(before)))
	}
	answer, err := r.query(`replicas`, at(42), at(5), time.Minute)
	want := map[string]string{chatServing: "39=40 38=39 37=38 36=38 35=38 34=38 33=38 32=38 11=12 10=11 9=11 8=11 7=11 6=11 5=11"}
	if diff := cmp.Diff(want, answer); err != nil || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
}

// The windows say when a series ended: its last minutes do not extend it.
func TestTheEndInTheWindowsCounts(t *testing.T) {
	r := newRig(t, engine.Config{})
	for before := 20; before > 1; before-- {
		r.record("ml", "chat", before, serving(3))
	}
	r.expose(at(8), at(1.5), 3, true)
	f := func(to time.Time, want string) {
		t.Helper()
		answer, err := r.query(`replicas`, to, to, 0)
		if err != nil || answer[chatServing] != want {
			t.Errorf("%s before now: %v, %v; want %q", now.Sub(to), answer, err, want)
		}
		answer, err = r.query(`replicas`, to, to.Add(time.Millisecond), time.Second)
		if _, v, _ := strings.Cut(answer[chatServing], "="); err != nil || v != want {
			t.Errorf("a range %s before now: %v, %v; want %q", now.Sub(to), answer, err, want)
		}
	}
	f(at(10), "3")
	f(at(2), "3")
	f(at(1), "")
	f(now, "")
}

// A storage may leave out the labels that an aggregation does not need.
func TestAggregationsHaveThePast(t *testing.T) {
	r := newRig(t, engine.Config{})
	for before := 20; before > 0; before-- {
		r.record("ml", "chat", before, serving(1))
		r.record("ml", "other", before, serving(10))
	}
	r.expose(at(2.5), now, 2, false)
	for range 3 { // the storage learns a grouping by its use
		answer, err := r.query(`sum by (namespace) (replicas)`, at(5), now.Add(-time.Second), time.Minute, "ml")
		if want := map[string]string{`{namespace="ml"}`: "5=11 4=11 3=11 2=12 1=12"}; err != nil || cmp.Diff(want, answer) != "" {
			t.Errorf("%v, %v; want %v", answer, err, want)
		}
		answer, err = r.query(`sum by (name) (replicas)`, now, now.Add(-time.Second), 0)
		if want := map[string]string{`{name="chat"}`: "2", `{name="other"}`: "10"}; err != nil || cmp.Diff(want, answer) != "" {
			t.Errorf("%v, %v; want %v", answer, err, want)
		}
	}
}

func TestTheNewestValueIsThatOfTheWindows(t *testing.T) {
	r := newRig(t, engine.Config{})
	r.record("ml", "chat", 2, serving(1))
	r.record("ml", "chat", 1, serving(2))
	r.record("ml", "other", 1, serving(7))
	r.expose(at(0.5), now, 3, false)
	answer, err := r.query(`replicas`, now, now, 0)
	other := strings.Replace(chatServing, "chat", "other", 1)
	if diff := cmp.Diff(map[string]string{chatServing: "3", other: "7"}, answer); err != nil || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
}

func TestStatistics(t *testing.T) {
	r := newRig(t, engine.Config{})
	util := func(mean, most, count float64) history.Value {
		return history.Value{Metric: "gpu", Mean: mean, Max: most, Count: count}
	}
	r.record("ml", "chat", 30, util(1, 1, 1)) // too old for the rolling mean
	r.record("ml", "chat", 6, util(10, 20, 1))
	r.record("ml", "chat", 4, util(40, 80, 2))
	r.record("ml", "chat", 3, util(0, 0, math.NaN()))
	got := r.samples(at(5.5), now, equals("__name__", "gpu"))
	of := func(stat string) string {
		return got[fmt.Sprintf(`{__name__="gpu", name="chat", namespace="ml", stat=%q}`, stat)]
	}
	for stat, want := range map[string]string{
		"avg": "5=10 3=40 2=0", "max": "5=20 3=80 2=0", "sum": "5=10 3=80 2=0", "avg_5m": "5=10 3=30 2=22.5",
	} {
		if of(stat) != want {
			t.Errorf("%s is %q, want %q", stat, of(stat), want)
		}
	}
}

// A minute counts at its end, to the last millisecond, and the rolling mean has exactly
// the minutes of its time.
func TestEdgesOfMinutes(t *testing.T) {
	r := newRig(t, engine.Config{})
	r.record("ml", "chat", 10, serving(4)) // the point is 9 minutes ago
	f := func(from, to float64, want string) {
		t.Helper()
		got := strings.Join(slices.Collect(maps.Values(r.samples(at(from), at(to), equals("__name__", "replicas")))), ";")
		if got != want {
			t.Errorf("from %v to %v minutes ago: %q, want %q", from, to, got, want)
		}
	}
	const ms = 1.0 / 60_000
	f(9, 9, "9=4")
	f(9+ms, 9-ms, "9=4")
	f(9-ms, 9-2*ms, "")
	f(12, 9+ms, "")
	util := func(mean float64) history.Value {
		return history.Value{Metric: "gpu", Mean: mean, Max: mean, Count: 1}
	}
	r.record("ml", "web", 12, util(1000)) // older than the time of the mean at 6
	r.record("ml", "web", 11, util(1))
	r.record("ml", "web", 8, serving(1)) // without the metric
	r.record("ml", "web", 7, util(3))
	got := r.samples(at(20), now, equals("__name__", "gpu"))[`{__name__="gpu", name="web", namespace="ml", stat="avg_5m"}`]
	if want := "11=1000 10=500.5 6=2"; got != want {
		t.Errorf("the rolling mean is %s, want %s", got, want)
	}
}

// More metrics than one read has, some of them unknown before.
func TestManyMetricsOfAWorkload(t *testing.T) {
	r := newRig(t, engine.Config{})
	var values []history.Value
	for i := range history.MaxMetrics {
		values = append(values, mean(signal(fmt.Sprintf("s%03d", i)), float64(i)))
	}
	r.record("ml", "chat", 30, values[:100]...)
	r.record("ml", "chat", 20, values...)
	r.record("ml", "other", 20, values[7])
	got := r.samples(at(60), now, equals("__name__", "signal_value"))
	if len(got) != history.MaxMetrics+1 {
		t.Errorf("%d series", len(got))
	}
	for i := range history.MaxMetrics {
		want := fmt.Sprintf("19=%d", i)
		if i < 100 {
			want = fmt.Sprintf("29=%d %s", i, want)
		}
		if s := got[fmt.Sprintf(`{__name__="signal_value", name="chat", namespace="ml", per="replica", signal="s%03d", unit="%%"}`, i)]; s != want {
			t.Errorf("s%03d has %q, want %q", i, s, want)
		}
	}
}

// Tenants choose the names of signals.
func TestHostileNames(t *testing.T) {
	r := newRig(t, engine.Config{})
	names := []string{`a"} or vector(1) #`, "line\nbreak", `a",namespace="other`, `a\\`, "__name__", strings.Repeat("x", 90), "\u202eé"}
	var values []history.Value
	for i, n := range names {
		values = append(values, mean(signal(n), float64(i)))
	}
	r.record("ml", "chat", 3, values...)
	for i, n := range names {
		answer, err := r.query(fmt.Sprintf("signal_value{signal=%q}", n), at(1), at(1), 0)
		if err != nil || len(answer) != 1 || !strings.Contains(keys(answer), `per="replica"`) || answer[keys(answer)] != fmt.Sprint(i) {
			t.Errorf("%q: %v, %v", n, answer, err)
		}
	}
	w := history.Workload{Namespace: "ml", Kind: "GPUAutoscaler", Name: "a\xff"}
	if err := r.minutes.Append(w, at(3), values); err == nil {
		t.Error("a name that is not UTF-8 was accepted")
	}
	bad := []history.Value{mean("signal_value{signal=\"a\xff\"}", 1), mean(signal("b\xff"), 2), mean(`replicas{name="other",namespace="other",state="serving"}`, 3)}
	r.record("ml", "bad", 3, bad...)
	answer, err := r.query(`{__name__=~"signal_value|replicas",name=~"bad|other"}`, at(1), at(1), 0)
	if want := `{__name__="replicas", name="bad", namespace="ml", state="serving"}` + "\n" +
		`{__name__="signal_value", name="bad", namespace="ml", per="replica", signal="b", unit="%"}`; err != nil || keys(answer) != want {
		t.Errorf("%v, %v", answer, err)
	}
}

func TestLabelsOfTheHistory(t *testing.T) {
	r := newRig(t, engine.Config{})
	r.record("old", "gone", 5000, serving(1))
	r.record("ml", "chat", 30, serving(1), mean(signal("a"), 1), mean("other_metric", 1))
	r.expose(at(1), now, 1, false)
	q := engine.Query{Payer: fair.Namespace("test")}
	values := func(want, label string, minutes float64, q engine.Query, match ...string) {
		t.Helper()
		got, _, err := r.engine.LabelValues(t.Context(), q, label, engine.Selection{Match: match, From: at(minutes), To: now})
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s of %v: %q, %v; want %q", label, match, got, err, want)
		}
	}
	values("ml old", "namespace", 60, q) // whose series a viewer may ask for
	values("ml", "namespace", 60, q, "replicas")
	values("ml old", "namespace", 6000, q, "replicas")
	values("a", "signal", 60, q)
	values("chat gone", "name", 6000, q)
	values("chat", "name", 6000, engine.Query{Payer: fair.Namespace("test"), Namespaces: []string{"ml"}})
	values("", "name", 6000, engine.Query{Payer: fair.Namespace("test"), Namespaces: []string{}})
	names, _, err := r.engine.LabelNames(t.Context(), q, engine.Selection{From: at(60), To: now})
	if want := "__name__ instance job name namespace per signal state unit"; err != nil || strings.Join(names, " ") != want {
		t.Errorf("names %q, %v; want %q", names, err, want)
	}
	all, _, err := r.engine.Series(t.Context(), q, engine.Selection{Match: []string{`{__name__=~".+"}`}, From: at(60), To: now})
	if err != nil || len(all) != 3 { // with up
		t.Errorf("series %v, %v", all, err)
	}
}

// A viewer of one namespace reads that one, whatever the matchers are.
func FuzzNamespaces(f *testing.F) {
	for _, s := range []string{
		`replicas`, `{namespace="b"}`, `{namespace=~".*",name=~".+"}`, `replicas{namespace!="a"}`, `{__name__=~"repl.*|signal_value"}`,
		`{namespace=""}`, `{name="secret"}`, `{namespace=~"a|b"}`, `{namespace="a",namespace="b"}`, `{namespace=~"a|"}`,
	} {
		f.Add(s)
	}
	r := newRig(f, engine.Config{})
	for _, ns := range []string{"a", "b", "ab"} {
		r.record(ns, "secret", 3, serving(1), mean(signal("of "+ns), 1))
	}
	p := parser.NewParser(parser.Options{})
	f.Fuzz(func(t *testing.T, selector string) {
		if _, err := p.ParseMetricSelector(selector); err != nil {
			return
		}
		q := engine.Query{PromQL: selector, Payer: fair.Namespace("test"), Namespaces: []string{"a"}}
		answer, err := r.query(selector, at(5), now, time.Minute, "a")
		if err == nil {
			for k := range answer {
				if !strings.Contains(k, `namespace="a"`) {
					t.Errorf("%s reads %s", selector, k)
				}
			}
		}
		where := engine.Selection{Match: []string{selector}, From: at(5), To: now}
		for _, label := range []string{"namespace", "signal"} {
			values, _, err := r.engine.LabelValues(context.Background(), q, label, where)
			if err == nil && slices.ContainsFunc(values, func(v string) bool { return v != "a" && v != "of a" }) {
				t.Errorf("%s has the values %q", selector, values)
			}
		}
		list, _, err := r.engine.Series(context.Background(), q, where)
		if err == nil && slices.ContainsFunc(list, func(l labels.Labels) bool { return l.Get("namespace") != "a" }) {
			t.Errorf("%s has the series %v", selector, list)
		}
	})
}

// A query for too much ends with the limit, and others go on.
func TestLimitsHoldForTheHistory(t *testing.T) {
	r := newRig(t, engine.Config{MaxSamples: 10_000, MaxSeries: 500})
	for before := 300; before > 0; before-- {
		for i := range 60 {
			r.record("ml", fmt.Sprint("w", i), before, serving(1))
		}
	}
	_, err := r.query(`replicas`, at(300), now, time.Minute)
	if !errors.As(err, new(promql.ErrTooManySamples)) {
		t.Errorf("error %v, want the limit of samples", err)
	}
	for i := range 600 {
		r.record("many", fmt.Sprint("w", i), 3, serving(1))
	}
	_, err = r.query(`replicas`, now, at(1), 0)
	if limit := new(engine.LimitError); !errors.As(err, &limit) || limit.Limit != engine.LimitSeries {
		t.Errorf("error %v, want the limit of series", err)
	}
	answer, err := r.query(`sum(replicas{name="w1",namespace="ml"})`, at(300), now, time.Hour)
	if err != nil || len(answer) != 1 {
		t.Errorf("%v, %v", answer, err)
	}
}

// The selectors of a query share the points that were read last.
func TestSelectorsOfAQueryAreApart(t *testing.T) {
	r := newRig(t, engine.Config{})
	for before := 60; before > 0; before-- {
		r.record("ml", "chat", before, serving(float64(before)), mean(`replicas{state="desired"}`, float64(-before)))
		r.record("ml", "other", before, serving(float64(1000*before)))
	}
	answer, err := r.query(`replicas{name="chat",state="serving"} + ignoring(state) replicas{name="chat",state="desired"} offset 10m + on() group_left() replicas{name="other"} @ `+
		fmt.Sprint(at(30).Unix()), at(2), at(0), time.Minute)
	if want := map[string]string{`{name="chat", namespace="ml"}`: "2=30990 1=30990 0=30990"}; err != nil || cmp.Diff(want, answer) != "" {
		t.Errorf("%v, %v; want %v", answer, err, want)
	}
}

func TestACancelledQueryEnds(t *testing.T) {
	r := newRig(t, engine.Config{})
	for i := range 2 * checkEvery {
		r.record("ml", fmt.Sprint("w", i), 3, serving(1))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	q, err := r.store.Querier(0, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	if set := q.Select(ctx, false, nil, equals("__name__", "replicas")); set.Next() || !errors.Is(set.Err(), context.Canceled) {
		t.Errorf("error %v", set.Err())
	}
}

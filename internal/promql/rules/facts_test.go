// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/test/logtest"
)

// A file holds the last that is allowed, and no more.
func TestBoundsOfAFile(t *testing.T) {
	e := engine.New(engine.Config{}, NewStore(time.Minute, 1))
	f := func(what, text, want string) {
		t.Helper()
		if _, err := Parse([]byte(text), e.Selectors); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	rules := func(n int) string {
		return "groups: [{name: a, rules: [" + strings.Repeat("{record: r, expr: 1},", n) + "]}]"
	}
	named := func(n, length int) string {
		out := "groups: [{name: a, labels: {"
		for i := range n {
			out += fmt.Sprintf("l%d: %s,", i, strings.Repeat("x", length))
		}
		return out + "}, rules: [{record: r, expr: 1}]}]"
	}
	f("the largest file", rules(1)+" #"+strings.Repeat("x", MaxFileBytes-len(rules(1))-2), "")
	f("a larger file", rules(1)+" #"+strings.Repeat("x", MaxFileBytes-len(rules(1))-1), "at most 1048576")
	f("the most rules", rules(maxRules), "")
	f("more rules", rules(maxRules+1), "more than 1000 recording rules")
	f("more rules in two groups", "groups: [{name: b, rules: [{record: r, expr: 1}]},"+strings.TrimPrefix(rules(maxRules), "groups: ["), "more than 1000 recording rules")
	f("the most labels", named(maxLabels, 1), "")
	f("more labels", named(maxLabels+1, 1), "31 labels; at most 30")
	f("the longest label", named(1, maxLabelText), "")
	f("a longer label", named(1, maxLabelText+1), "longer than 1024 bytes")
	f("no expression", "groups: [{name: a, rules: [{record: r}]}]", "expr is empty")
	f("a wrong offset", "groups: [{name: a, query_offset: 5}]", "query_offset")
}

// sourceOf is a source of groups of rules: record, expression, and labels as "name=value".
func sourceOf(t *testing.T, id, namespace string, rules ...[]string) *Source {
	t.Helper()
	e := engine.New(engine.Config{}, NewStore(time.Minute, 1))
	g := Group{Name: "g"}
	for _, r := range rules {
		selectors, err := e.Selectors(r[1])
		if err != nil {
			t.Fatal(err)
		}
		out := Rule{Record: r[0], Expr: r[1], Labels: map[string]string{}, selectors: selectors}
		for _, l := range r[2:] {
			name, v, _ := strings.Cut(l, "=")
			out.Labels[name] = v
		}
		g.Rules = append(g.Rules, out)
	}
	return &Source{ID: id, Namespace: namespace, Groups: []Group{g}}
}

// Sources that are added one after another: which are accepted.
func TestAcceptance(t *testing.T) {
	type rule = []string
	f := func(what string, want string, sources ...*Source) {
		t.Helper()
		a := newAcceptance("namespace", nil)
		var err error
		for i, s := range sources {
			if err = a.add(s); err != nil && i < len(sources)-1 {
				t.Fatalf("%s: %s: %v", what, s.ID, err)
			}
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
		if last := sources[len(sources)-1]; err != nil { // it leaves nothing behind
			for name, claims := range a.all {
				if slices.ContainsFunc(claims, func(c claim) bool { return c.source == last }) {
					t.Errorf("%s: %s is recorded by a source that was refused", what, name)
				}
			}
		}
	}
	s := func(id, namespace string, rules ...rule) *Source { return sourceOf(t, id, namespace, rules...) }
	f("a metric in two namespaces", "", s("x", "a", rule{"m", "1"}), s("y", "b", rule{"m", "1"}))
	f("a metric twice in a namespace", "recorded by x already", s("x", "a", rule{"m", "1"}), s("y", "a", rule{"m", "1"}))
	f("with other labels", "", s("x", "a", rule{"m", "1", "l=1"}), s("y", "a", rule{"m", "1", "l=2"}))
	f("the operator's, with other labels", "recorded by x already", s("x", "", rule{"m", "1", "l=1"}), s("y", "a", rule{"m", "1", "l=2"}))
	f("twice in a source", "two rules record m with the same labels", s("x", "a", rule{"m", "1"}, rule{"m", "2"}))
	f("a rule that reads itself", "m reads m", s("x", "a", rule{"m", "m + 1"}))
	f("its own labels keep it apart", "", s("x", "a", rule{"m", `m{l="2"} + 1`, "l=1"}))
	f("a cycle over two sources", "b reads a", s("x", "a", rule{"a", "b"}), s("y", "a", rule{"b", "a"}))
	f("another namespace's rules are not seen", "", s("x", "a", rule{"a", "b"}), s("y", "b", rule{"b", "a"}))
	f("the operator's rules see a tenant's", "b reads a", s("x", "", rule{"a", "b"}), s("y", "a", rule{"b", "a"}))
	f("a selector of many names", "reads", s("x", "a", rule{"a", `{__name__=~"b|c"}`}, rule{"c", "a"}))
	f("a selector of other names", "", s("x", "a", rule{"a", `{__name__=~"d|e"}`}, rule{"c", "a"}))
	diamond := []rule{{"top", "l + r"}, {"l", "bottom"}, {"r", "bottom"}, {"bottom", "x"}}
	f("a diamond", "", s("x", "a", diamond...))
	many := func(n int) (out []rule) {
		for i := range n {
			out = append(out, rule{fmt.Sprint("m", i), "1"})
		}
		return out
	}
	f("the most of a namespace", "", s("x", "a", many(maxNamespaceRules)...))
	f("one more", "would have 101; at most 100", s("x", "a", many(maxNamespaceRules)...), s("y", "a", rule{"other", "1"}))
	f("one of another namespace", "", s("x", "a", many(maxNamespaceRules)...), s("y", "b", rule{"other", "1"}))
	f("the most of all", "", s("x", "", many(maxAllRules)...))
	f("one more of all", "there would be 5001; at most 5000", s("x", "", many(maxAllRules)...), s("y", "a", rule{"other", "1"}))
	// Precedence: the operator's first, then the older one, then by name.
	list := []*Source{{ID: "b"}, {ID: "z", Namespace: "n", Created: time.Unix(1, 0)}, {ID: "a", Namespace: "n", Created: time.Unix(2, 0)}, {ID: "a"}, {ID: "y", Namespace: "n", Created: time.Unix(1, 0)}}
	slices.SortFunc(list, compareSources)
	order := ""
	for _, x := range list {
		order += x.ID + x.Namespace + " "
	}
	if order != "a b yn zn an " {
		t.Errorf("the order is %s", order)
	}
}

// fixed is an engine with one answer.
type fixed struct {
	mu    sync.Mutex
	value parser.Value
	err   error
	query engine.Query
	at    time.Time
	block time.Duration
}

func (f *fixed) Instant(_ context.Context, q engine.Query, at time.Time) (parser.Value, annotations.Annotations, error) {
	f.mu.Lock()
	f.query, f.at = q, at
	value, err, block := f.value, f.err, f.block
	f.mu.Unlock()
	time.Sleep(block)
	return value, nil, err
}

// answer sets the error of the next answers, and how long they take.
func (f *fixed) answer(err error, block time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.block = err, block
}

// A rule of a namespace is evaluated within the namespace and its limits, an operator's
// within more.
func TestQueriesOfRules(t *testing.T) {
	f := func(namespace string, want engine.Query) {
		t.Helper()
		e := &fixed{value: promql.Scalar{V: 2.5}}
		m := New(Config{Label: "tenant"}, Deps{Engine: e, Store: NewStore(time.Hour, 1<<20)})
		s := sourceOf(t, "x", namespace, []string{"m", "1", "l=v"})
		g := &s.Groups[0]
		g.Offset = time.Minute
		r := &runner{m: m, source: s, group: g, interval: time.Second, previous: make([]map[string]*result, 1)}
		now := time.Unix(1_800_000_000, 0)
		if err := r.evaluateRule(t.Context(), 0, now); err != nil || fmt.Sprint(e.query) != fmt.Sprint(want) || !e.at.Equal(now.Add(-time.Minute)) {
			t.Errorf("%+v at %s, %v; want %+v", e.query, e.at, err, want)
		}
		text := ""
		for _, x := range (&querier{m.deps.Store, 0, math.MaxInt64}).matching(nil) {
			text += fmt.Sprint(x.labels.String(), x.points)
		}
		label := ""
		if namespace != "" {
			label = `, tenant="` + namespace + `"`
		}
		if want := fmt.Sprintf(`{__name__="m", l="v"%s}[{%d 2.5}]`, label, now.Add(-time.Minute).UnixMilli()); text != want {
			t.Errorf("recorded is %s, want %s", text, want)
		}
	}
	f("", engine.Query{PromQL: "1", Payer: fair.Operator("rules of files"), Reserved: true, Timeout: 10 * time.Second})
	f("a", engine.Query{PromQL: "1", Payer: fair.Namespace("a"), Reserved: true, Timeout: 2 * time.Second, Namespaces: []string{"a"}})
	r := &runner{m: New(Config{}, Deps{}), source: &Source{}, group: &Group{Rules: []Rule{{Record: "m"}}}}
	if out, err := r.samples(0, promql.Vector{{H: &histogram.FloatHistogram{}}}); err == nil || !strings.Contains(err.Error(), "histograms") {
		t.Errorf("a histogram: %v, %v", out, err)
	}
}

// What happens to rules is logged and counted: failures when they begin and end, at most
// once a minute, and evaluations that come too late.
func TestLogAndMeters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Buffer
		var wanted []string
		e := &fixed{value: promql.Scalar{V: 1}}
		m := New(Config{}, Deps{
			Engine: e, Store: NewStore(time.Hour, 1<<20), Log: slog.New(slog.NewTextHandler(&log, nil)),
			Want: func(metrics ...string) { wanted = slices.Sorted(slices.Values(metrics)) },
		})
		m.Set(sourceOf(t, "good", "", []string{"m", `up + down + {__name__=~"x.*"}`}), nil)
		m.Set(&Source{ID: "bad"}, errors.New("cannot be read"))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); m.Run(ctx) }()
		f := func(after time.Duration, result string, missed int, logged string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			metrics, err := testutil.CollectAndFormat(m, expfmt.TypeTextPlain, "gpupilot_rules", "gpupilot_rules_groups", "gpupilot_rules_missed_total", "gpupilot_rules_source_wrong", "gpupilot_rules_series")
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{
				`gpupilot_rules{result="` + result + `"} 1`, `gpupilot_rules_groups 1`, fmt.Sprint(`gpupilot_rules_missed_total `, missed), `gpupilot_rules_source_wrong{source="bad"} 1`,
			} {
				if !strings.Contains(string(metrics), want+"\n") {
					t.Errorf("no %s in\n%s", want, metrics)
				}
			}
			text := log.Take()
			if n := strings.Count(text, "\n"); logged == "" && n > 0 || logged != "" && (n != 1 || !strings.Contains(text, logged)) {
				t.Errorf("the log is %q, want %q", text, logged)
			}
		}
		f(0, "pending", 0, "")
		f(2*time.Second, "success", 0, "")
		if !slices.Equal(wanted, []string{"down", "up"}) {
			t.Errorf("the rules read %q", wanted)
		}
		e.answer(errors.New("broken"), 0)
		f(2*time.Second, "failed", 0, "recording rule failed")
		e.answer(nil, 0)
		f(2*time.Second, "success", 0, "") // within a minute
		e.answer(errors.New("broken"), 0)
		f(time.Minute, "failed", 0, "")
		e.answer(nil, 0)
		f(2*time.Second, "success", 0, "recording rule works again")
		e.answer(nil, 3500*time.Millisecond)
		f(5*time.Second, "success", 3, "")
		cancel()
		<-ended
	})
}

// The store reads as a plain list of samples does, whatever was appended, ended and swept.
func TestTheStoreIsAList(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	s := NewStore(20*time.Second, 1<<30)
	type sample struct {
		t int64
		v float64
	}
	list := map[string][]sample{}
	previous := map[string]*result{}
	const begin = int64(1_800_000_000_000)
	at := begin
	for range 200 {
		at += random.Int64N(3) * 1000 // some are not newer
		var samples []Sample
		now := map[string]bool{}
		for i := range 5 {
			if random.IntN(3) > 0 {
				l := labels.FromStrings("__name__", fmt.Sprint("m", i%2), "namespace", fmt.Sprint("ns-", i%3), "i", fmt.Sprint(i))
				samples = append(samples, Sample{l, random.Float64()})
				now[l.String()] = true
			}
		}
		newer := func(key string) bool { x := list[key]; return len(x) == 0 || x[len(x)-1].t < at }
		for _, x := range samples {
			if key := x.Labels.String(); newer(key) {
				list[key] = append(list[key], sample{at, x.Value})
			}
		}
		for _, r := range previous {
			if key := r.labels.String(); !now[key] && newer(key) && !value.IsStaleNaN(list[key][len(list[key])-1].v) {
				list[key] = append(list[key], sample{at, math.Float64frombits(value.StaleNaN)})
			}
		}
		var err error
		if previous, err = s.append(&writer{rule: "r", interval: time.Second}, time.UnixMilli(at), previous, samples); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{`m0`, `{__name__=~"m.*"}`, `m1{namespace="ns-1"}`, `{namespace!="ns-0"}`, `m0{i=~"2|4"}`, `none`} {
		matchers, err := parser.NewParser(parser.Options{}).ParseMetricSelector(text)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			from, to := at-random.Int64N(19)*1000, at-random.Int64N(19)*1000
			var want []string
			values := map[string]bool{}
			for key, x := range list {
				l, _ := parser.NewParser(parser.Options{}).ParseMetric(key)
				if slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(l.Get(m.Name)) }) {
					continue
				}
				points := ""
				for _, p := range x {
					if p.t >= from && p.t <= to {
						points += fmt.Sprintf(" %d:%x", p.t, math.Float64bits(p.v))
					}
				}
				if points != "" {
					want = append(want, key+points)
					values[l.Get("i")] = true
				}
			}
			slices.Sort(want)
			q, _ := s.Querier(from, to)
			var got []string
			var it chunkenc.Iterator
			for set := q.Select(t.Context(), true, nil, matchers...); set.Next(); {
				line := set.At().Labels().String()
				for it = set.At().Iterator(it); it.Next() != chunkenc.ValNone; {
					stamp, v := it.At()
					line += fmt.Sprintf(" %d:%x", stamp, math.Float64bits(v))
				}
				got = append(got, line)
			}
			if !slices.IsSorted(got) {
				t.Errorf("%s: the series are not sorted", text)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("%s from %d to %d:\n got %v\nwant %v", text, from-begin, to-begin, got, want)
			}
			names, _, _ := q.LabelNames(t.Context(), nil, matchers...)
			if is, _, _ := q.LabelValues(t.Context(), "i", nil, matchers...); len(is) != len(values) || !slices.IsSorted(is) || len(got) > 0 && fmt.Sprint(names) != "[__name__ i namespace]" || len(got) == 0 && len(names) > 0 {
				t.Errorf("%s: the values are %q, the names %q", text, is, names)
			}
		}
	}
	// A series has one rule, until it ends.
	l := labels.FromStrings("__name__", "one")
	own := func(rule string, at int64) (map[string]*result, error) {
		return s.append(&writer{rule: rule, interval: time.Second}, time.UnixMilli(at), nil, []Sample{{l, 1}})
	}
	first, err := own("a", at)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = own("b", at+1); err == nil || !strings.Contains(err.Error(), "two rules") {
		t.Errorf("another rule's series: %v", err)
	}
	s.end(time.UnixMilli(at+2), first)
	if _, err = own("b", at+3); err != nil {
		t.Errorf("a series that has ended: %v", err)
	}
	if err := s.Append(time.UnixMilli(at+4), []Sample{{labels.FromStrings("__name__", "plain"), 1}}); err != nil {
		t.Error(err)
	}
}

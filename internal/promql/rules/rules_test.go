// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/internal/promql/source"
)

// rig is a manager over a store of scraped series and one of results.
type rig struct {
	*Manager
	engine  *engine.Engine
	scraped *Store

	mu       sync.Mutex
	problems map[string]string
}

// problem returns what was last reported of a source.
func (r *rig) problem(id string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problems[id]
}

func newRig() *rig {
	r := &rig{scraped: NewStore(time.Hour, 1<<30), problems: map[string]string{}}
	results := NewStore(10*time.Minute, 8<<20)
	r.engine = engine.New(engine.Config{}, engine.Join(r.scraped, results))
	r.Manager = New(Config{}, Deps{
		Engine: r.engine, Store: results, Reserved: func(name string) bool { return strings.HasPrefix(name, "DCGM_") },
		Report: func(s *Source, problem string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.problems[s.ID] = problem
		},
	})
	return r
}

// scrape stores series as a scrape would.
func (r *rig) scrape(t testing.TB, metric string, v float64) {
	t.Helper()
	l, err := parser.NewParser(parser.Options{}).ParseMetric(metric)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.scraped.append(&writer{rule: metric, interval: time.Second}, time.Now(), nil, []Sample{{l, v}}); err != nil {
		t.Fatal(err)
	}
}

// set adds a source of rules in the format of files.
func (r *rig) set(id, namespace, text string) {
	groups, err := Parse([]byte(text), r.engine.Selectors)
	r.Set(&Source{ID: id, Namespace: namespace, Groups: groups}, err)
}

// value evaluates a query that returns one number.
func (r *rig) value(t testing.TB, text string) string {
	t.Helper()
	v, _, err := r.engine.Instant(t.Context(), engine.Query{PromQL: text}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range v.(promql.Vector) {
		out = append(out, fmt.Sprintf("%s %v", s.Metric, s.F))
	}
	return strings.Join(out, "; ")
}

// walkthrough is the rule of a public walkthrough of HPAs on GPU metrics.
const walkthrough = `
groups:
- name: gpu-rule-group
  rules:
  - record: cuda_test_gpu_avg
    expr: avg( max by(node, pod, namespace) (dcgm_gpu_utilization) * on(pod) group_left(label_app) max by(pod, label_app) (kube_pod_labels{label_app="cuda-test"}) )
    labels:
      namespace: default
      deployment: cuda-test
`

// The result of a rule with a namespace and a deployment is a custom metric of the
// deployment.
func TestWalkthrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		for i, util := range []float64{10, 30} {
			r.scrape(t, fmt.Sprintf(`dcgm_gpu_utilization{namespace="default",pod="cuda-test-%d",node="n",gpu="0"}`, i), util)
			r.scrape(t, fmt.Sprintf(`kube_pod_labels{namespace="default",pod="cuda-test-%d",label_app="cuda-test"}`, i), 1)
		}
		r.set("PrometheusRule/default/cuda-test", "default", walkthrough)
		ctx, cancel := context.WithCancel(t.Context())
		go r.Run(ctx)
		defer func() { cancel(); synctest.Wait() }()
		time.Sleep(2 * time.Second)
		want := `{__name__="cuda_test_gpu_avg", deployment="cuda-test", namespace="default"} 20`
		if got := r.value(t, "cuda_test_gpu_avg"); got != want {
			t.Errorf("the series is %s", got)
		}
		infos := r.Metrics()
		if len(infos) != 1 || infos[0].String() != "deployments.apps/cuda_test_gpu_avg(namespaced)" {
			t.Errorf("discovery has %v", infos)
		}
		q := source.Query{
			Resource: schema.GroupResource{Group: "apps", Resource: "deployments"}, Namespace: "default", Names: []string{"other", "cuda-test"},
			Metric: "cuda_test_gpu_avg", Selector: k8slabels.Everything(), Now: time.Now(),
		}
		values, err := r.Values(t.Context(), q)
		if err != nil || len(values) != 1 || values[0].Name != "cuda-test" || values[0].Value != 20 {
			t.Errorf("the value is %v, %v", values, err)
		}
		q.Now = q.Now.Add(time.Minute)
		if values, err = r.Values(t.Context(), q); err != nil || len(values) != 0 {
			t.Errorf("an outdated value: %v, %v", values, err)
		}
		q.Namespace = "other"
		if values, err = r.Values(t.Context(), q); err != nil || len(values) != 0 {
			t.Errorf("another namespace: %v, %v", values, err)
		}
		q.Metric = "x"
		if _, err = r.Values(t.Context(), q); !errors.Is(err, source.ErrUnknownMetric) {
			t.Errorf("an unknown metric: %v", err)
		}
	})
}

// The rules of a namespace read and record only its series.
func TestNamespacesOfRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.scrape(t, `m{namespace="a"}`, 1)
		r.scrape(t, `m{namespace="b"}`, 2)
		r.scrape(t, `m{node="n"}`, 4)
		r.set("a", "a", "groups: [{name: g, rules: [{record: a_sum, expr: sum(m)}, {record: stolen, expr: 'sum by (namespace) (label_replace(m, \"namespace\", \"b\", \"\", \"\"))', labels: {node: n}}]}]")
		r.set("all", "", "groups: [{name: g, rules: [{record: all_sum, expr: sum(m), labels: {node: n}}, {record: twice_sum, expr: all_sum * 2}]}]")
		ctx, cancel := context.WithCancel(t.Context())
		go r.Run(ctx)
		defer func() { cancel(); synctest.Wait() }()
		time.Sleep(2 * time.Second)
		for text, want := range map[string]string{
			"a_sum":     `{__name__="a_sum", namespace="a"} 1`,
			"stolen":    `{__name__="stolen", namespace="a", node="n"} 1`,
			"all_sum":   `{__name__="all_sum", node="n"} 7`,
			"twice_sum": `{__name__="twice_sum", node="n"} 14`,
		} {
			if got := r.value(t, text); got != want {
				t.Errorf("%s: %s, want %s", text, got, want)
			}
		}
		var metrics []string
		for _, i := range r.Metrics() {
			metrics = append(metrics, i.String())
		}
		want := []string{"namespaces/a_sum", "namespaces/stolen", "nodes/all_sum", "nodes/twice_sum"}
		if d := cmp.Diff(want, metrics); d != "" {
			t.Error(d)
		}
		// Without the source its series end.
		r.Remove("all")
		time.Sleep(time.Second)
		if got := r.value(t, "all_sum"); got != "" {
			t.Errorf("after the rules were removed: %s", got)
		}
		time.Sleep(11 * time.Minute)
		if n := len(r.Metrics()); n != 2 {
			t.Errorf("%d metrics remain", n)
		}
	})
}

// What is wrong is told about its source, and stops no other.
func TestWrongSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		good := "groups: [{name: g, rules: [{record: one, expr: vector(1)}]}]"
		r.set("good", "", good)
		r.set("unparsable", "", "groups: [{name: g, rules: [{record: x, expr: 'sum('}]}]")
		r.set("twice", "b", "groups: [{name: g, rules: [{record: one, expr: vector(2)}]}]")
		r.set("cycle", "", "groups: [{name: g, rules: [{record: y, expr: z + 1}, {record: z, expr: 'y{a=\"\"} + 1'}]}]")
		r.set("self", "", "groups: [{name: g, rules: [{record: s, expr: '{__name__=~\"s.*\"}'}]}]")
		r.set("spoof", "b", "groups: [{name: g, rules: [{record: DCGM_FI_DEV_GPU_UTIL, expr: vector(100)}]}]")
		r.set("foreign", "b", "groups: [{name: g, rules: [{record: f, expr: vector(1), labels: {namespace: c}}]}]")
		many := "groups: [{name: g, rules: ["
		for i := range maxNamespaceRules + 1 {
			many += fmt.Sprintf("{record: m%d, expr: vector(1)},", i)
		}
		r.set("many", "c", many+"]}]")
		ctx, cancel := context.WithCancel(t.Context())
		go r.Run(ctx)
		defer func() { cancel(); synctest.Wait() }()
		time.Sleep(3 * time.Second)
		for id, want := range map[string]string{
			"unparsable": "expr: 1:5: parse error", "twice": "one is recorded by good already", "cycle": "read their own results: y reads z", "self": "s reads s",
			"spoof": "metric that is scraped", "foreign": `record only "b"`, "many": "would have 101; at most 100",
		} {
			if !strings.Contains(r.problem(id), want) {
				t.Errorf("%s: %q does not say %q", id, r.problem(id), want)
			}
		}
		if p := r.problem("good"); p != "" {
			t.Errorf("good: %s", p)
		}
		// The last good version keeps running.
		r.set("good", "", "groups: [")
		time.Sleep(2 * time.Second)
		if got := r.value(t, "one"); got != `{__name__="one"} 1` {
			t.Errorf("after a broken version: %q", got)
		}
		if r.problem("good") == "" {
			t.Error("nothing is told about the broken version")
		}
		// And so it does if the new version can be read, and is refused.
		r.set("good", "", "groups: [{name: g, rules: [{record: one, expr: one + 1}]}]")
		time.Sleep(2 * time.Second)
		if got := r.value(t, "one"); got != `{__name__="one"} 1` {
			t.Errorf("after a version that reads itself: %q", got)
		}
		// A version that works replaces it, and the problem is gone.
		r.set("good", "", strings.Replace(good, "(1)", "(3)", 1))
		time.Sleep(2 * time.Second)
		if got := r.value(t, "one"); got != `{__name__="one"} 3` || r.problem("good") != "" {
			t.Errorf("after a new version: %q, %q", got, r.problem("good"))
		}
	})
}

// Of rules that are refused nothing is kept. They are offered again when others have made room.
func TestRefusedRulesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		many := func(prefix string, n int, expr string) string {
			text := "groups: [{name: g, rules: ["
			for i := range n {
				text += fmt.Sprintf("{record: %s%d, expr: '%s'},", prefix, i, expr)
			}
			return text + "]}]"
		}
		ctx, cancel := context.WithCancel(t.Context())
		go r.Run(ctx)
		defer func() { cancel(); synctest.Wait() }()
		r.set("first", "b", many("x", 60, "vector(1)"))
		time.Sleep(time.Second)
		texts := map[string]string{"second": many("y", 60, "vector(1)"), "large": many("z", 20, "vector(1) + "+strings.Repeat("1", maxNamespaceBytes/10)), "all": many("v", 101, "vector(1)")}
		for id, text := range texts {
			r.set(id, "b", text)
		}
		r.set("other", "c", many("y", 60, "vector(1)"))
		time.Sleep(time.Second)
		for id := range texts {
			r.Manager.mu.Lock()
			o := r.offered[id]
			r.Manager.mu.Unlock()
			if len(o.source.Groups) > 0 || o.problem == "" {
				t.Errorf("of %s %d groups are kept, problem %q", id, len(o.source.Groups), o.problem)
			}
		}
		if ids := r.Waiting(); len(ids) > 0 || r.problem("other") != "" {
			t.Errorf("waiting: %v, other: %s", ids, r.problem("other"))
		}
		r.Remove("first")
		offered := 0
		for ids := r.Waiting(); len(ids) > 0; ids = r.Waiting() {
			for _, id := range ids {
				r.set(id, "b", texts[id])
			}
			time.Sleep(time.Second)
			if offered += len(ids); offered > 10 {
				t.Fatalf("%v are offered again and again", ids)
			}
		}
		if r.problem("second") != "" || r.problem("all") == "" || r.problem("large") == "" {
			t.Errorf("problems: %q, %q, %q", r.problem("second"), r.problem("all"), r.problem("large"))
		}
	})
}

// Rules that fail say so, and the results are bounded.
func TestFailingRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		for i := range maxNamespaceResults + 1 {
			r.scrape(t, fmt.Sprintf(`many{namespace="a",i="%d"}`, i), 1)
		}
		r.set("a", "a", "groups: [{name: g, limit: 5000, rules: [{record: copies, expr: many}, {record: limited, expr: 'many{i=~\"[0-4]\"}'}, {record: equal, expr: 'many', labels: {i: x}}, {record: text, expr: '\"x\"'}]}, {name: l, limit: 2, rules: [{record: l, expr: 'many{i=~\"[0-4]\"}'}]}]")
		ctx, cancel := context.WithCancel(t.Context())
		go r.Run(ctx)
		defer func() { cancel(); synctest.Wait() }()
		time.Sleep(2 * time.Second)
		problems := map[string]string{}
		for _, g := range r.Groups() {
			for _, s := range g.Rules {
				problems[s.Rule.Record] = s.Error
			}
		}
		for record, want := range map[string]string{
			"copies": "1001 series; at most 1000", "limited": "", "equal": "several series", "text": "is a string", "l": "5 series; at most 2",
		} {
			if got := problems[record]; !strings.Contains(got, want) || (want == "") != (got == "") {
				t.Errorf("%s: %q, want %q", record, got, want)
			}
		}
	})
}

// One namespace cannot use the memory of the others.
func TestStoreIsBounded(t *testing.T) {
	s := NewStore(10*time.Minute, 8<<20)
	now := time.Unix(1_800_000_000, 0)
	fill := func(payer string, n int) (err error) {
		var samples []Sample
		for i := range n {
			samples = append(samples, Sample{labels.FromStrings("__name__", "m", "namespace", payer, "i", fmt.Sprint(i)), 1})
		}
		_, err = s.append(&writer{rule: payer, payer: fair.Namespace(payer), interval: time.Second}, now, nil, samples)
		return err
	}
	if err := fill("greedy", 1000); err == nil || !strings.Contains(err.Error(), "1 MiB for one namespace") {
		t.Errorf("a greedy namespace: %v", err)
	}
	if err := fill("modest", 10); err != nil {
		t.Errorf("a modest one: %v", err)
	}
	if x := s.Stats(); x.Bytes > 2<<20 {
		t.Errorf("%+v", x)
	}
	s.Sweep(now.Add(time.Hour))
	if x := s.Stats(); x != (StoreStats{}) || len(s.bytes) > 0 {
		t.Errorf("after the window: %+v", x)
	}
}

func TestParseErrors(t *testing.T) {
	e := engine.New(engine.Config{}, NewStore(time.Minute, 1))
	f := func(text, want string) {
		t.Helper()
		if _, err := Parse([]byte(text), e.Selectors); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	f("groups: {", "read rules")
	f("group: []", "group")
	f("groups: [{rules: []}]", "no name")
	f("groups: [{name: a}, {name: a}]", `group "a" appears twice`)
	f("groups: [{name: a, interval: x}]", "interval")
	f("groups: [{name: a, limit: -1}]", "limit is -1")
	f("groups: [{name: a, rules: [{expr: x}]}]", "record is empty")
	f("groups: [{name: a, rules: [{record: 'a b', expr: x}]}]", `record "a b"`)
	f("groups: [{name: a, rules: [{record: a, alert: b, expr: x}]}]", "give one of them")
	f("groups: [{name: a, rules: [{record: a, expr: x, labels: {__name__: b}}]}]", "__name__")
	f("groups: [{name: a, rules: [{record: a, expr: x, for: 5m}]}]", "alerting rules")
	f("groups: [{name: a, rules: [{record: a, expr: 'x{a=~\"(\"}'}]}]", `rule 1 (a): expr`)
	f("groups: [{name: a, rules: [{record: a, expr: 'x{a=~\""+strings.Repeat("(?:(?:a{31}){31})", 200)+"\"}'}]}]", "instructions")
	groups, err := Parse([]byte("groups: [{name: a, interval: 30s, labels: {x: y, z: a}, rules: [{alert: A, expr: 'sum(', for: 1m}, {record: r, expr: 1, labels: {x: z}}]}]"), e.Selectors)
	if err != nil || len(groups) != 1 || groups[0].Alerts != 1 || groups[0].Interval != 30*time.Second || groups[0].Rules[0].Labels["x"] != "z" || groups[0].Rules[0].Labels["z"] != "a" {
		t.Errorf("%+v, %v", groups, err)
	}
	if groups, err = Parse(nil, e.Selectors); err != nil || len(groups) > 0 {
		t.Errorf("an empty file: %v, %v", groups, err)
	}
}

// FuzzParse: hostile files are read or refused, never a panic, and what is accepted
// keeps to the bounds.
func FuzzParse(f *testing.F) {
	f.Add(walkthrough)
	f.Add("groups: [{name: a, rules: [{record: a, expr: a}]}]")
	f.Add("a: &a [*a]")
	e := engine.New(engine.Config{}, NewStore(time.Minute, 1))
	f.Fuzz(func(t *testing.T, text string) {
		groups, err := Parse([]byte(text), e.Selectors)
		if err != nil {
			return
		}
		a := newAcceptance("namespace", nil)
		_ = a.add(&Source{ID: "x", Namespace: "a", Groups: groups})
		for _, g := range groups {
			if g.Name == "" || len(g.Rules) > maxRules {
				t.Errorf("accepted %+v", g)
			}
		}
	})
}

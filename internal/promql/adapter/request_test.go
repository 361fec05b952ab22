// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	kubelabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/internal/promql/rules"
)

// What a request asks that PromQL cannot say is refused, never left out.
func TestRefusedRequests(t *testing.T) {
	set, err := parseRules(t, `
rules:
- {seriesQuery: up, resources: {template: <<.Resource>>}, metricsQuery: 'up{pod=~"<<.LabelValuesByName.pod>>",x="<<.LabelValuesByName.x>>"}'}
- {seriesQuery: up, resources: {overrides: {pod: {resource: pod}}}, metricsQuery: 'up{<<.LabelMatchers>>}'}
- {seriesQuery: up, resources: {template: "<<.Group>>-<<.Resource>>"}, metricsQuery: 'up{<<.LabelMatchers>>}'}
externalRules:
- {seriesQuery: up, resources: {overrides: {pod: {resource: pod}}}, metricsQuery: 'up{<<.LabelMatchers>>}'}
`)
	if err != nil {
		t.Fatal(err)
	}
	f := func(rule int, o Objects, want string) {
		t.Helper()
		if o.Selector == nil {
			o.Selector = kubelabels.Everything()
		}
		if got, _, err := set.Rules[rule].Query("up", &o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %s, %v, want %q", o, got, err, want)
		}
	}
	f(0, Objects{pods, "ml", []string{`a"}`}, nil}, `pod: "a\"}" cannot be used with .LabelValuesByName`)
	f(0, Objects{pods, "ml", []string{"a", "b|.*"}, nil}, "cannot be used")
	f(0, Objects{pods, "ml", []string{"a"}, selector(t, "x>1")}, `operator "gt"`)
	f(0, Objects{pods, "ml", []string{"a"}, kubelabels.Nothing()}, "matches nothing")
	f(0, Objects{pods, "ml", []string{"a"}, selector(t, "a.b/c=d")}, `"a.b/c" is not the name of a label`)
	f(0, Objects{schema.GroupResource{Group: "x.io", Resource: "things"}, "ml", []string{"a"}, nil}, "things.x.io is not a known resource")
	f(1, Objects{pods, "ml", []string{"a"}, nil}, "no label for namespaces: add it to overrides")
	f(1, Objects{schema.GroupResource{Resource: "nodes"}, "", []string{"n"}, nil}, "no label for nodes")
	f(2, Objects{pods, "", []string{"a"}, nil}, `"-pod" is not the name of a label`)
	for _, s := range []kubelabels.Selector{kubelabels.Nothing(), selector(t, "x<1"), kubelabels.Everything()} {
		if got, err := set.Rules[3].ExternalQuery("up", "ml", s); err == nil { // the last one: no label for the namespace
			t.Errorf("%v: %s", s, got)
		}
	}
	if text, err := Matchers(selector(t, "a=b,!c,d in (e,f)")); err != nil || text != `a="b",c="",d=~"e|f"` {
		t.Errorf("%s, %v", text, err)
	}
	if text, err := Matchers(kubelabels.Nothing()); err == nil {
		t.Errorf("the selector of nothing is %q", text)
	}
}

// A template that makes no PromQL of some series has no query for all objects at once.
func TestBatchesNeedAQuery(t *testing.T) {
	for _, query := range []string{`<<if eq .Series "example">>up<<end>>`, `<<if eq .Series "example">>up<<else>>up(<<end>>`, `<<if eq .Series "example">>up<<else>><<index .GroupBySlice 9>><<end>>`} {
		if ruleOf(t, query).Batches("x", "pod") {
			t.Errorf("%s is taken for a query of many objects", query)
		}
	}
}

// Prometheus's engine gives each object the same value by one query for all of them as by
// a query of its own, wherever Batches says so.
func TestBatchesKeepTheValues(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	random := rand.New(rand.NewPCG(1, 2))
	store := rules.NewStore(time.Hour, 1<<30)
	for s := range 30 {
		var samples []rules.Sample
		for _, name := range []string{"x", "y"} {
			for i := range 12 {
				samples = append(samples, rules.Sample{Labels: labels.FromStrings("__name__", name, "namespace", fmt.Sprint("ns-", i%2), "pod", fmt.Sprint("p-", i/4), "gpu", fmt.Sprint(i%4)), Value: random.Float64()})
			}
		}
		if err := store.Append(now.Add(time.Duration(s-29)*time.Second), samples); err != nil {
			t.Fatal(err)
		}
	}
	e := engine.New(engine.Config{}, store)
	ask := func(query string) map[string]string {
		out := map[string]string{}
		v, _, err := e.Instant(t.Context(), engine.Query{PromQL: query}, now)
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		for _, s := range v.(promql.Vector) {
			out[s.Metric.Get("pod")] += fmt.Sprintf("%s %.9g;", s.Metric.DropReserved(func(string) bool { return false }), s.F)
		}
		return out
	}
	const m = `{<<.LabelMatchers>>}`
	batched := 0
	for _, query := range []string{
		`x` + m, `avg(x` + m + `) by (<<.GroupBy>>)`, `sum by (gpu, pod) (rate(x` + m + `[20s]))`, `topk by (pod) (1, x` + m + `)`, `max without (gpu) (x` + m + `)`,
		`x` + m + ` / on (pod, gpu) y` + m, `sum(x` + m + `) by (pod) / ignoring (gpu) sum(y` + m + `) by (pod)`, `x` + m + ` > 0.5 or y` + m, `-max_over_time(x` + m + `[20s:1s])`,
		`avg(x` + m + `)`, `topk(2, x` + m + `)`, `max without (pod) (x` + m + `)`, `x` + m + ` / on () group_left sum(x` + m + `)`, `x` + m + ` / scalar(sum(x` + m + `))`,
		`x` + m + ` / on (gpu, namespace) group_left () max by (gpu, namespace) (y)`, `sum(x) by (pod) + sum(y` + m + `) by (pod)`, `absent(x` + m + `)`, `sum by (gpu) (x` + m + `)`,
	} {
		r := ruleOf(t, query)
		if !r.Batches("x", "pod") {
			continue
		}
		batched++
		all, _, err := r.Query("x", &Objects{Resource: pods, Namespace: "ns-0", Selector: kubelabels.Everything()})
		if err != nil {
			t.Fatal(err)
		}
		together := ask(all)
		for _, pod := range []string{"p-0", "p-1", "p-2"} {
			one, _, err := r.Query("x", &Objects{Resource: pods, Namespace: "ns-0", Names: []string{pod}, Selector: kubelabels.Everything()})
			if err != nil {
				t.Fatal(err)
			}
			if alone := ask(one); alone[pod] != together[pod] || len(alone) > 1 || alone[pod] == "" {
				t.Errorf("%s: %s has %q alone and %q with the others", query, pod, alone, together[pod])
			}
		}
	}
	if batched != 9 {
		t.Errorf("%d rules have a query for all objects, want 9", batched)
	}
}

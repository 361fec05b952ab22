// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/internal/promql/source"
)

// A rule that fails at run time is a problem of its source, as rules that cannot be
// parsed are, and ends when the rule works.
func TestProblems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		for _, pod := range []string{"x", "y"} {
			r.scrape(t, fmt.Sprintf(`m{namespace="a",pod=%q,k="1"}`, pod), 1)
		}
		r.set("PrometheusRule/a/join", "a", `
groups:
- name: ok
  rules: [{record: fine, expr: sum(m)}]
- name: joins
  rules:
  - {record: joined, expr: 'm * on (k) m'}
  - {record: again, expr: 'm * on (k) m'}
`)
		r.set("PrometheusRule/a/odd", "a", "groups: [{name: g, rules: [{record: odd, expr: vector(1), labels: {namespace: a, shard: x}}]}]")
		r.set("PrometheusRule/a/broken", "a", "groups: [{name: g, rules: [{record: x, expr: 'sum('}]}]")
		ctx, cancel := context.WithCancel(t.Context())
		go r.Run(ctx)
		defer func() { cancel(); synctest.Wait() }()
		time.Sleep(5 * time.Second)
		var got []string
		for _, p := range r.Problems() {
			got = append(got, p.Source+" "+p.Reason)
		}
		if s := strings.Join(got, ", "); s != "PrometheusRule/a/broken RulesRefused, PrometheusRule/a/join RuleFailed, PrometheusRule/a/odd UnknownResource" {
			t.Fatal(s)
		}
		text := r.Problems()[1].Text
		if !strings.Contains(text, `group "joins", rule joined: `) || !strings.Contains(text, "many-to-many") || !strings.HasSuffix(text, "; 1 more rules fail") || len(text) > 500 {
			t.Errorf("the text is %s", text)
		}
		r.set("PrometheusRule/a/join", "a", "groups: [{name: joins, rules: [{record: joined, expr: 'm * on (pod) m'}]}]")
		r.Remove("PrometheusRule/a/odd")
		r.Remove("PrometheusRule/a/broken")
		time.Sleep(5 * time.Second)
		if p := r.Problems(); len(p) > 0 {
			t.Errorf("after the rules were mended: %+v", p)
		}
	})
}

// A custom metric has one value for an object: of the series that the selector selects,
// if it is young enough.
func TestValuesOfObjects(t *testing.T) {
	m, now, _ := manyResults(t, 1, 3)
	add := func(pairs ...string) {
		t.Helper()
		l := labels.FromStrings(append(pairs, "__name__", "m", "namespace", "ml")...)
		if err := m.deps.Store.Append(now, []Sample{{l, 1}}); err != nil {
			t.Fatal(err)
		}
	}
	add("deployment", "one", "shard", "a")
	add("deployment", "two", "shard", "a")
	add("deployment", "two", "shard", "b")
	f := func(namespace, metric, selector string, age time.Duration, want string) {
		t.Helper()
		parsed, err := k8slabels.Parse(selector)
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.Values(t.Context(), source.Query{
			Resource: schema.GroupResource{Group: "apps", Resource: "deployments"}, Namespace: namespace, Names: []string{"none", "one", "two"},
			Metric: metric, Selector: parsed, Now: now.Add(age),
		})
		text := ""
		for _, v := range got {
			text += v.Name + " "
		}
		if err != nil {
			text = err.Error()
		}
		if !strings.Contains(text, want) || want == "" && text != "" {
			t.Errorf("%s/%s %q after %s: %s, want %s", namespace, metric, selector, age, text, want)
		}
	}
	f("ml", "m", "", 0, "metric m: a recording rule returns several series for deployments.apps two: aggregate them")
	f("ml", "m", "shard=a", 0, "one two ")
	f("ml", "m", "shard=b", 0, "two ")
	f("ml", "m", "shard notin (a)", 0, "two ")
	f("ml", "m", "shard", 5*time.Second, "several series")
	f("ml", "m", "shard", 5*time.Second+time.Millisecond, "")
	f("ml", "m", "!shard", 0, "")
	f("other", "m", "shard=a", 0, "")
	f("", "m", "shard=a", 0, "does not serve this metric")
	f("ml", "none", "", 0, "does not serve this metric")
}

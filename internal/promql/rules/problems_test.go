// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
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

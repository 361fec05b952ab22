// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpupilot/gpupilot/internal/promql/engine"
)

// A rule records nothing of a namespace that lacks series, and a rule that reads its
// results does neither. Other namespaces keep theirs: nobody can hide what is not theirs.
func TestRulesRecordNothingIncomplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		var absent atomic.Pointer[engine.Incomplete]
		r.engine = engine.New(engine.Config{Incomplete: func() []engine.Incomplete {
			list := r.deps.Store.Incomplete()
			if x := absent.Load(); x != nil {
				list = append(list, *x)
			}
			return list
		}}, engine.Join(r.scraped, r.deps.Store))
		r.deps.Engine = r.engine
		r.set("file", "", `
groups:
- name: g
  rules:
  - {record: util, expr: avg by (namespace) (agg)}
  - {record: renamed, expr: max by (namespace) (2 * util), labels: {of: gpus}}
  - {record: total, expr: sum(util)}
`)
		ctx, cancel := context.WithCancel(t.Context())
		go r.Run(ctx)
		defer func() { cancel(); synctest.Wait() }()
		scrape := func() {
			r.scrape(t, `agg{namespace="a",name="x"}`, 5)
			r.scrape(t, `agg{namespace="b",name="x"}`, 7)
			if absent.Load() == nil {
				r.scrape(t, `agg{namespace="a",name="y"}`, 95)
			}
		}
		f := func(text, want string) {
			t.Helper()
			if got := r.value(t, text); got != want {
				t.Errorf("%s: %s, want %s", text, got, want)
			}
		}
		scrape()
		time.Sleep(3 * time.Second)
		f(`sum(renamed)`, `{} 114`)
		f(`total`, `{__name__="total"} 57`)
		absent.Store(&engine.Incomplete{Metric: "agg", Labels: labels.FromStrings("namespace", "a", "name", "y"), Why: "2 of its GPUs"})
		scrape()
		time.Sleep(3 * time.Second)
		f(`renamed`, `{__name__="renamed", namespace="b", of="gpus"} 14`)
		f(`total`, ``)
		for text, says := range map[string]string{
			`avg(renamed)`:                `renamed{name="y", namespace="a", of="gpus"} is absent, because it could look like less load: 2 of its GPUs`,
			`sum(util{namespace="a"})`:    `util{name="y", namespace="a"} is absent, because it could look like less load: 2 of its GPUs`,
			`sum(renamed{of="gpus"})`:     `renamed{name="y", namespace="a", of="gpus"} is absent, because it could look like less load: 2 of its GPUs`,
			`sum(renamed{of="other"})`:    "the query returns nothing: no series matches",
			`sum(renamed{namespace="b"})`: "",
		} {
			_, err := r.engine.Number(t.Context(), engine.Query{PromQL: text}, time.Now())
			if (err == nil) != (says == "") || err != nil && err.Error() != says {
				t.Errorf("%s: %v, want %s", text, err, says)
			}
		}
		for _, g := range r.Groups() {
			if got := g.Rules[2].Error; got == "" || g.Rules[0].Error != "" {
				t.Errorf("the errors of the rules are %q and %q", g.Rules[0].Error, got)
			}
		}
		absent.Store(nil)
		scrape()
		time.Sleep(3 * time.Second)
		f(`sum(renamed)`, `{} 114`)
		f(`total`, `{__name__="total"} 57`)
		absent.Store(&engine.Incomplete{Metric: "agg", Labels: labels.FromStrings("namespace", "a", "name", "y"), Why: "2 of its GPUs"})
		time.Sleep(2 * time.Second)
		r.Set(&Source{ID: "file"}, nil)
		time.Sleep(2 * time.Second)
		if left := r.deps.Store.Incomplete(); len(left) != 0 {
			t.Errorf("without rules there is %+v", left)
		}
	})
}

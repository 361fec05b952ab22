// SPDX-License-Identifier: Apache-2.0

package client

import (
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/promql/scope"
	"github.com/gpupilot/gpupilot/test/promtest"
)

// Prometheus itself answers as the client expects.
func TestRealPrometheus(t *testing.T) {
	c := real(t, "backlog{queue=\"a\"} 3\nbacklog{queue=\"b\"} 4\nold 1 1000\n", "sum(backlog)", 7)
	f := func(promql string, want float64, says string) {
		t.Helper()
		s, err := c.Query(t.Context(), promql)
		switch {
		case says == "" && (err != nil || s.Value != want || time.Since(s.At).Abs() > time.Minute):
			t.Errorf("%s: %+v, %v; want %v", promql, s, err, want)
		case says != "" && (err == nil || !strings.Contains(err.Error(), says)):
			t.Errorf("%s: %v, want an error that says %q", promql, err, says)
		}
	}
	f("sum(backlog)", 7, "")
	f(`backlog{queue="a"}`, 3, "")
	f("1 + 1", 2, "")
	f("sum(none) or vector(0)", 0, "")
	f("backlog", 0, "several series")
	f("none", 0, "no series matches")
	f("vector(1)/0 - vector(1)/0", 0, "returns NaN")
	f("backlog[1m]", 0, "returns a matrix")
	f("sum(", 0, "parse error")
}

// real is a client of a Prometheus that scrapes the page, and has done so: the
// query gives the value.
func real(t *testing.T, page, promql string, value float64) *Client {
	t.Helper()
	c, err := New(Config{URL: promtest.Serve(t, page), Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		if s, err := c.Query(t.Context(), promql); err == nil && s.Value == value {
			return c
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing was scraped within a minute")
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// Of two namespaces' series a query sees those of its own.
func TestQueriesOfTenants(t *testing.T) {
	c := real(t, `backlog{namespace="team-a",pod="x",job="web"} 3
backlog{namespace="team-a",pod="y",job="web"} 4
backlog{namespace="team-b",pod="x",job="web"} 100
secret{namespace="team-b"} 1000
none 10000
info_metric{namespace="team-b",pod="x",version="7"} 1
`, "min_over_time(sum(backlog)[2s:1s])", 107)
	scope, err := scope.New(scope.Config{})
	if err != nil {
		t.Fatal(err)
	}
	f := func(namespace, promql string, want float64, says string) {
		t.Helper()
		limited, _, err := scope.Limit(namespace, promql)
		if err != nil {
			t.Errorf("%s: %v", promql, err)
			return
		}
		s, err := c.Query(t.Context(), limited)
		switch {
		case says == "" && (err != nil || s.Value != want):
			t.Errorf("%s: %s asks %s: %g, %v; want %g", namespace, promql, limited, s.Value, err, want)
		case says != "" && (err == nil || !strings.Contains(err.Error(), says)):
			t.Errorf("%s: %s asks %s: %g, %v; want an error that says %q", namespace, promql, limited, s.Value, err, says)
		}
	}
	f("team-a", `sum(backlog)`, 7, "")
	f("team-b", `sum(backlog)`, 100, "")
	f("team-c", `sum(backlog)`, 0, "no series")
	f("team-a", `sum({__name__=~"backlog|secret|none"})`, 7, "")
	f("team-a", `count(count by (namespace) ({__name__=~".+"}))`, 1, "")
	f("team-a", `secret`, 0, "no series")
	f("team-a", `none`, 0, "no series")
	f("team-a", `secret or vector(0)`, 0, "")
	f("team-a", `absent(secret)`, 1, "")
	f("team-b", `count(absent(secret)) or vector(2)`, 2, "")
	f("team-a", `sum(label_replace(backlog, "namespace", "team-b", "", ""))`, 7, "")
	f("team-a", `sum(backlog * on (pod) group_left (version) info_metric)`, 0, "no series")
	f("team-a", `max_over_time(sum(backlog)[10s:1s] @ end())`, 7, "")
	f("team-a", `sum(avg_over_time(backlog[1m] offset -1s))`, 7, "")
	f("team-a", `scalar(secret)`, 0, "NaN")
	f("team-a", `topk(1, backlog)`, 4, "")
	f("team-a", `sum(backlog) by (job) - -2 ^ 2`, 11, "")
	f("team-a", `vector(1)`, 1, "")
	f("team-a", `backlog`, 0, `namespace="team-a"`) // of several series it names one of its own
	f("team-a", `{"backlog", "pod"="x"}`, 3, "")
}

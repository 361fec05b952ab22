// SPDX-License-Identifier: Apache-2.0

package scope

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/gpupilot/gpupilot/internal/base/weight"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
	"github.com/gpupilot/gpupilot/internal/promql/rules"
)

func scope(t testing.TB, cfg Config) *Scope {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Every selector of a query is limited, wherever it stands.
func TestEverySelectorIsLimited(t *testing.T) {
	s := scope(t, Config{})
	f := func(promql, want string) {
		t.Helper()
		got, trusted, err := s.Limit("team-a", promql)
		if err != nil || trusted || got != want {
			t.Errorf("%s\n got %s, %v\nwant %s", promql, got, err, want)
		}
	}
	f(`backlog`, `backlog{namespace="team-a"}`)
	f(`{__name__="backlog"}`, `{__name__="backlog",namespace="team-a"}`)
	f(`{__name__=~".+"}`, `{__name__=~".+",namespace="team-a"}`)
	f(`{"backlog"}`, `{__name__="backlog",namespace="team-a"}`)
	f(`{"my.metric", "my.label"="x"}`, `{"my.label"="x",__name__="my.metric",namespace="team-a"}`)
	f(`backlog{namespace="team-a"}`, `backlog{namespace="team-a"}`)
	f(`backlog{namespace="team-a",namespace="team-a"}`, `backlog{namespace="team-a",namespace="team-a"}`)
	f(`backlog{"namespace"="team-a"}`, `backlog{namespace="team-a"}`)
	f(`backlog{exported_namespace="x"}`, `backlog{exported_namespace="x",namespace="team-a"}`)
	f(`sum(rate(requests_total{code!="500"}[1m]))`, `sum(rate(requests_total{code!="500",namespace="team-a"}[1m]))`)
	f(`max_over_time(sum(rate(x[1m]))[5m:30s] @ end() offset 1m)`, `max_over_time(sum(rate(x{namespace="team-a"}[1m]))[5m:30s] @ end() offset 1m)`)
	f(`x offset -5m @ start()`, `x{namespace="team-a"} @ start() offset -5m`)
	f(`a / on (pod) group_left (node) kube_pod_info`, `a{namespace="team-a"} / on (pod) group_left (node) kube_pod_info{namespace="team-a"}`)
	f(`absent(a) or absent_over_time(b[5m])`, `absent(a{namespace="team-a"}) or absent_over_time(b{namespace="team-a"}[5m])`)
	f(`label_replace(a, "namespace", "team-b", "pod", ".*")`, `label_replace(a{namespace="team-a"}, "namespace", "team-b", "pod", ".*")`)
	f(`topk(scalar(a), b)`, `topk(scalar(a{namespace="team-a"}), b{namespace="team-a"})`)
	f(`quantile(scalar(a), -b)`, `quantile(scalar(a{namespace="team-a"}), -b{namespace="team-a"})`)
	f(`count_values("namespace", a)`, `count_values("namespace", a{namespace="team-a"})`)
	f(`target_info * on (job) group_left () a`, `target_info{namespace="team-a"} * on (job) group_left () a{namespace="team-a"}`)
	f("a # {namespace=\"team-b\"}\n + b", `a{namespace="team-a"} + b{namespace="team-a"}`)
	f(`limitk(3, a) unless b and c > bool 1`, `limitk(3, a{namespace="team-a"}) unless b{namespace="team-a"} and c{namespace="team-a"} > bool 1`)
	f(`a{x="}, b{"}`, `a{namespace="team-a",x="}, b{"}`)
	f(`start{start="x"}`, `start{namespace="team-a",start="x"}`)
	f(`a{b=~"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(x|y|z).*"}`, `a{b=~"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(x|y|z).*",namespace="team-a"}`)
	// These read no series.
	for _, none := range []string{`vector(1)`, `scalar(vector(1))`, `time()`, `1 + 1`, `hour() >= bool 8`} {
		f(none, none)
	}
}

// What cannot be limited to the namespace is refused, with what to do.
func TestRejections(t *testing.T) {
	s := scope(t, Config{})
	f := func(reason, promql string, says ...string) {
		t.Helper()
		got, _, err := s.Limit("team-a", promql)
		if err == nil {
			t.Errorf("%s runs as %s", oneLine(promql), got)
			return
		}
		if reasonOf(err) != reason {
			t.Errorf("%s: the reason is %q, want %q", oneLine(promql), reasonOf(err), reason)
		}
		for _, w := range says {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q does not say %q", oneLine(promql), err, w)
			}
		}
		if len(err.Error()) > 800 || !utf8.ValidString(err.Error()) {
			t.Errorf("%s: an error of %d bytes: %q", oneLine(promql), len(err.Error()), err)
		}
	}
	const trust = "or ask the operator to add team-a to --query-namespaces"
	f("namespace", `backlog{namespace="team-b"}`, `selector backlog{namespace="team-b"}`, `the matcher namespace="team-b" is not allowed`, `remove it`, trust)
	f("namespace", `sum(a) + b{x="1",namespace=~".*"}`, `selector b{namespace=~".*",x="1"}`, `namespace=~".*"`)
	f("namespace", `a{namespace=~"team-a|team-b"}`)
	f("namespace", `a{namespace!="team-a"}`)
	f("namespace", `a{namespace!~"x"}`)
	f("namespace", `a{namespace=""}`)
	f("namespace", `a{namespace="team-a",namespace=~".+"}`)
	f("namespace", `a{"namespace"="team-b"}`)
	f("namespace", `{"a","namespace"=~"team-.*"}`)
	f("namespace", `a{'namespace'="team-b"}`)
	f("namespace", "a{`namespace`=\"team-b\"}")
	f("namespace", `a{"names\x70ace"="team-b"}`)
	f("namespace", `rate(a{namespace="team-b"}[5m:1m])`)
	f("namespace", `absent(a{namespace="team-b"})`)
	f("namespace", `info(a)`, "info joins series", "group_left()", trust)
	f("namespace", `sum(info(rate(a[1m]), {__name__="build_info"}))`, "info joins series")
	f("namespace", `a{namespace="`+strings.Repeat("é", 1000)+`"}`)
	f("syntax", `sum(`, "parse error", "MetricsQL", "--query-namespaces")
	f("syntax", `WITH (x = a) x`, "parse error")
	f("syntax", `a{namespace="team-a" or namespace="team-b"}`, "parse error")
	f("syntax", `a default b`)
	f("syntax", `{}`, "non-empty matcher")
	f("syntax", "a\x00", "parse error")
	f("syntax", "\xff", "parse error")
	f("syntax", ``, "no expression")
	f("length", strings.Repeat("a", MaxLength+1), "4097 bytes; at most 4096", "recording rule")
	f("length", strings.Repeat("(", 100)+"a"+strings.Repeat(")", 100), "deep; at most 64 are allowed")
	f("length", strings.Repeat("1e300+", 60)+"a", "at most 16384")
	f("length", `a{b=~"`+strings.Repeat("(?:(?:a{31}){31})", 200)+`"}`, "regular expressions of the query expand to", "at most 20000")
	f("length", `label_replace(a, "b", "c", "d", "`+strings.Repeat("(?:[a-z]{0,900})?", 100)+`")`, "at most 20000")
	for _, ns := range []string{"", "*"} {
		if got, _, err := s.Limit(ns, "a"); reasonOf(err) != "namespace" {
			t.Errorf("in namespace %q a runs as %s, %v", ns, got, err)
		}
	}
}

// The queries of trusted namespaces run as they are written, PromQL or not.
func TestTrustedNamespaces(t *testing.T) {
	f := func(cfg Config, namespace, promql, want string) {
		t.Helper()
		got, trusted, err := scope(t, cfg).Limit(namespace, promql)
		if err != nil || trusted != (got == promql) || got != want {
			t.Errorf("%+v: in %s %s runs as %s (trusted %v), %v; want %s", cfg, namespace, promql, got, trusted, err, want)
		}
	}
	some := Config{Trusted: []string{"monitoring", "ml"}}
	f(some, "ml", `a{namespace="x" or b="c"}`, `a{namespace="x" or b="c"}`)
	f(some, "monitoring", "a", "a")
	f(some, "team-a", "a", `a{namespace="team-a"}`)
	f(some, "m", "a", `a{namespace="m"}`)
	f(Config{Trusted: []string{All}}, "team-a", "a", "a")
	f(Config{Trusted: []string{"team-*"}}, "team-a", "a", `a{namespace="team-a"}`) // no pattern
	f(Config{Label: "exported_namespace"}, "team-a", `a{namespace="x"}`, `a{exported_namespace="team-a",namespace="x"}`)
	if _, _, err := scope(t, Config{Trusted: []string{All}}).Limit("ml", strings.Repeat("a", MaxLength+1)); reasonOf(err) != "length" {
		t.Errorf("a long query of a trusted namespace: %v", err)
	}
	for _, bad := range []string{"__name__", "a-b", "1a", `a="x",b`, "a b"} {
		if _, err := New(Config{Label: bad}); err == nil || !strings.Contains(err.Error(), "label") {
			t.Errorf("label %q: %v", bad, err)
		}
	}
}

// Prometheus's engine gives a limited query on the series of all namespaces the result that
// the query as written has where there are only the series of its namespace.
func TestALimitedQueryIsTheQueryOfItsNamespace(t *testing.T) {
	all, own := rules.NewStore(time.Hour, 1<<30), rules.NewStore(time.Hour, 1<<30)
	now := time.Unix(1_800_000_000, 0)
	for s := range 60 {
		for i, ns := range []string{"team-a", "team-a", "team-b", "team-ab", ""} {
			var samples []rules.Sample
			for j, name := range []string{"a", "b", "target_info"} {
				l := labels.FromMap(map[string]string{"__name__": name, "namespace": ns, "pod": fmt.Sprint("p-", i), "node": "n"})
				samples = append(samples, rules.Sample{Labels: l, Value: float64(s*(i+1) + j)})
			}
			stores := []*rules.Store{all}
			if ns == "team-a" {
				stores = append(stores, own)
			}
			for _, store := range stores {
				if err := store.Append(now.Add(time.Duration(s-59)*time.Second), samples); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	s, ask := scope(t, Config{}), func(store *rules.Store, query string) string {
		v, _, err := engine.New(engine.Config{}, store).Instant(t.Context(), engine.Query{PromQL: query}, now)
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		lines := strings.Split(v.String(), "\n")
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	for _, query := range []string{
		`a`, `sum(a)`, `{__name__=~".+"}`, `count({namespace="team-a"})`, `a{pod=~"p-.*"} + on (pod) b`, `rate(a[30s])`, `max_over_time(sum(a)[30s:5s])`,
		`a offset 20s`, `a @ 1799999970`, `count(absent(a{pod="p-2"}))`, `scalar(sum(b)) + a`, `topk(1, a) or b unless a`, `label_replace(a, "namespace", "x", "", "")`,
		`count_values("v", b)`, `a * on (node, pod) group_left () target_info`, `sum by (namespace) (a) > bool scalar(max(b))`, `count(absent_over_time(c[1m]))`, `sort_desc(-a ^ 2)`,
	} {
		limited, _, err := s.Limit("team-a", query)
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		if got, want := ask(all, limited), ask(own, query); got != want || want == "" {
			t.Errorf("%s runs as %s:\n%s\nwant\n%s", query, limited, got, want)
		}
	}
}

// strange is a parser that reads another expression the second time.
type strange struct {
	parser.Parser
	read func(query string) (parser.Expr, error)
	done *bool
}

func (s strange) ParseExpr(query string) (parser.Expr, error) {
	if *s.done {
		return s.read(query)
	}
	*s.done = true
	return s.Parser.ParseExpr(query)
}

// A query whose limited text is not read as it was meant is refused.
func TestWhatIsReadDifferentlyIsRefused(t *testing.T) {
	f := func(what string, read func(p parser.Parser, query string) (parser.Expr, error), want string) {
		t.Helper()
		s := scope(t, Config{})
		plain := s.parser
		s.parser = strange{plain, func(query string) (parser.Expr, error) { return read(plain, query) }, new(bool)}
		got, _, err := s.Limit("team-a", `sum(a)`)
		if got != want || want == "" && (reasonOf(err) != "syntax" || !strings.Contains(err.Error(), "cannot be limited to namespace team-a")) {
			t.Errorf("%s: %q, %v; want %q", what, got, err, want)
		}
	}
	f("the same", func(p parser.Parser, query string) (parser.Expr, error) { return p.ParseExpr(query) }, `sum(a{namespace="team-a"})`)
	f("no PromQL", func(p parser.Parser, _ string) (parser.Expr, error) { return p.ParseExpr("sum(") }, "")
	f("another expression", func(p parser.Parser, _ string) (parser.Expr, error) { return p.ParseExpr(`sum(a{namespace="team-b"})`) }, "")
	f("another metric of the namespace", func(p parser.Parser, _ string) (parser.Expr, error) { return p.ParseExpr(`sum(b{namespace="team-a"})`) }, "")
	f("one selector more", func(p parser.Parser, query string) (parser.Expr, error) { return p.ParseExpr(query + " + b") }, "")
	f("a panic", func(parser.Parser, string) (parser.Expr, error) { panic("of the parser") }, "")

	s := scope(t, Config{})
	m := labels.MustNewMatcher(labels.MatchEqual, "namespace", "team-a")
	for text, want := range map[string]bool{
		`a{namespace="team-a"}`: true, `a`: false, `a{namespace=~"team-a"}`: false, `a{namespace="team-b"}`: false, `a{x="team-a"}`: false, `a{namespace!="team-a"}`: false,
		`a{namespace="team-a"} + b`: false, `a{namespace="team-a"} + b{namespace="team-a"}`: true,
	} {
		expr, err := s.parser.ParseExpr(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.isEquivalent(text, expr, m); got != want {
			t.Errorf("%s is taken for a limited query: %v", text, got)
		}
	}
}

// The limits hold to the byte and to the level.
func TestTheLimits(t *testing.T) {
	s := scope(t, Config{})
	f := func(what, query string, ok bool) {
		t.Helper()
		if _, _, err := s.Limit("team-a", query); (err == nil) != ok || !ok && reasonOf(err) != "length" {
			t.Errorf("%s: %v, allowed %v", what, err, ok)
		}
	}
	f("4096 bytes", "a #"+strings.Repeat("x", MaxLength-3), true)
	f("4097 bytes", "a #"+strings.Repeat("x", MaxLength-2), false)
	f("64 levels", strings.Repeat("-(", maxDepth/2)+"a"+strings.Repeat(")", maxDepth/2), true)
	f("66 levels", strings.Repeat("-(", maxDepth/2+1)+"a"+strings.Repeat(")", maxDepth/2+1), false)
	const one = `b=~"x{900}",`
	n := weight.MostInstructions / queries.TextOf("a{"+one+"}").Instructions
	f("the most instructions", "a{"+strings.Repeat(one, n)+"}", true)
	f("more instructions", "a{"+strings.Repeat(one, n+1)+"}", false)
}

// Whatever runs selects series of the namespace only, and means what was written.
func FuzzLimit(f *testing.F) {
	for _, seed := range []string{
		`sum(rate(a{b="c"}[5m])) by (x)`, `{__name__=~".+"}`, `a{namespace="x"}`, `{"a.b","namespace"="team-a"}`, `info(a)`, `-a ^ 2 ^ -1`,
		`a offset -1m @ 1e9`, `max_over_time(a[5m:1m] @ start())`, `a + on(x) group_left(y) b`, `topk(scalar(a), b)`, `1e300 + NaN - Inf`,
		`rate(a[step()+1m])`, `a fill(1) + b`, `rate(a[5m] smoothed)`, `label_replace(a,"namespace","b","c",".*")`, `a{b=~"(x|y)*"}`, `a[5m]`,
		`"namespace"`, `a{b="\n\xff"}`, "a#b\n+c", `histogram_quantile(0.9, a)`, `5m * a`, `count_values without("b")("c", d)`, `a == bool b`,
	} {
		f.Add(seed)
	}
	s := scope(f, Config{})
	f.Fuzz(func(t *testing.T, promql string) {
		limited, trusted, err := s.Limit("team-a", promql)
		if err != nil {
			if limited != "" || reasonOf(err) == "" || len(err.Error()) > 1000 {
				t.Errorf("%q: %q with the error %v", promql, limited, err)
			}
			return
		}
		again, err := s.parser.ParseExpr(limited)
		if err != nil || trusted {
			t.Fatalf("%q runs as %q (trusted %v), which does not parse: %v", promql, limited, trusted, err)
		}
		for _, selector := range parser.ExtractSelectors(again) {
			if !confined(selector, "team-a") {
				t.Errorf("%q runs as %q with the selector %v", promql, limited, selector)
			}
		}
		if twice, _, err := s.Limit("team-a", limited); err != nil || twice != limited {
			t.Errorf("%q runs as %q, which runs as %q, %v", promql, limited, twice, err)
		}
		if other, _, err := s.Limit("team-b", limited); err == nil && len(parser.ExtractSelectors(again)) > 0 {
			t.Errorf("the query of team-a runs in team-b as %q", other)
		}
		// Without the matchers it is the query that was written.
		before, err := s.parser.ParseExpr(promql)
		if err != nil {
			t.Fatalf("%q runs as %q and does not parse: %v", promql, limited, err)
		}
		strip(before)
		strip(again)
		if parser.Tree(before) != parser.Tree(again) {
			t.Errorf("%q runs as %q, which means something else", promql, limited)
		}
	})
}

// confined reports whether a selector matches only series of the namespace.
func confined(selector []*labels.Matcher, namespace string) bool {
	return slices.ContainsFunc(selector, func(m *labels.Matcher) bool {
		return m.Type == labels.MatchEqual && m.Name == "namespace" && m.Value == namespace
	})
}

// strip removes the matchers of the namespace from an expression.
func strip(expr parser.Expr) {
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if v, ok := node.(*parser.VectorSelector); ok {
			v.LabelMatchers = slices.DeleteFunc(v.LabelMatchers, func(m *labels.Matcher) bool { return m.Name == "namespace" })
		}
		return nil
	})
}

// reasonOf is the reason of a rejection, "" of another error.
func reasonOf(err error) string {
	if r, ok := errors.AsType[*Rejection](err); ok {
		return r.RejectedFor()
	}
	return ""
}

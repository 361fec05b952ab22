// SPDX-License-Identifier: Apache-2.0

// Package promscope limits PromQL queries to the series of one namespace. The
// controller runs the queries of all tenants with one account of the backend, so
// that this limit is what keeps one tenant from reading the series of another.
package promscope

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// The bounds of one query.
const (
	MaxLength = 4096 // bytes, as written
	// maxLimited is how long the limited text may be: each selector grows by one
	// matcher, and a number such as 1e300 is written in full.
	maxLimited = 16 << 10
	// maxDepth bounds the time that printing takes, which grows with the depth
	// times the length.
	maxDepth = 64
	// maxShown is how much of a selector an error shows, in bytes.
	maxShown = 160
)

// All is the name that stands for all namespaces in Config.Trusted.
const All = "*"

// Config says which label holds the namespace, and who is not limited.
type Config struct {
	// Label is the label of a series that holds its namespace. The backend must
	// set it: where a scraped pod may choose it, pods can pose as others. "namespace".
	Label string
	// Trusted are namespaces whose queries run as they are written; All: every one.
	Trusted []string
}

// Scope limits queries.
type Scope struct {
	label   string
	all     bool
	trusted []string
	parser  parser.Parser
}

var labelName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// New checks the configuration.
func New(cfg Config) (*Scope, error) {
	if cfg.Label == "" {
		cfg.Label = "namespace"
	}
	if !labelName.MatchString(cfg.Label) || cfg.Label == model.MetricNameLabel {
		return nil, fmt.Errorf("%q is not the name of a label that can hold a namespace", cfg.Label)
	}
	return &Scope{
		label: cfg.Label, all: slices.Contains(cfg.Trusted, All), trusted: slices.Clone(cfg.Trusted),
		// What a backend does not know it refuses. What this parser does not know is refused here.
		parser: parser.NewParser(parser.Options{
			EnableExperimentalFunctions: true, ExperimentalDurationExpr: true, EnableExtendedRangeSelectors: true, EnableBinopFillModifiers: true,
		}),
	}, nil
}

// Rejection is why a query does not run. Its text is for the query's author.
type Rejection struct{ reason, text string }

// Error is error's.
func (r *Rejection) Error() string { return r.text }

// RejectedFor is the reason as a metric's label: length, syntax or namespace.
func (r *Rejection) RejectedFor() string { return r.reason }

func reject(reason, format string, args ...any) error {
	return &Rejection{reason: reason, text: fmt.Sprintf(format, args...)}
}

// Limit returns the query that may run for a namespace. In a trusted namespace
// that is the query as it is written, which need not be PromQL: the backend
// parses it. Elsewhere every selector has the matcher label="namespace".
func (s *Scope) Limit(namespace, promql string) (limited string, trusted bool, err error) {
	if len(promql) > MaxLength {
		return "", false, reject("length", "the query has %d bytes; at most %d are allowed: use a recording rule", len(promql), MaxLength)
	}
	if s.all || slices.Contains(s.trusted, namespace) {
		return promql, true, nil
	}
	limited, err = s.limit(namespace, promql)
	return limited, false, err
}

func (s *Scope) limit(namespace, promql string) (limited string, err error) {
	defer func() {
		if p := recover(); p != nil { // the parser's printer panics at what it does not expect
			limited, err = "", s.unprintable(namespace)
		}
	}()
	if namespace == "" || namespace == All { // label="" would match the series that have no such label
		return "", reject("namespace", "%q is not a namespace that a query can be limited to", namespace)
	}
	if n := expansion(promql); n > maxRegexps {
		return "", reject("length", "its regular expressions expand to %d instructions; at most %d are allowed: repeat less", n, maxRegexps)
	}
	expr, err := s.parser.ParseExpr(promql)
	if err != nil {
		return "", reject("syntax", "%s. Extensions of PromQL, such as MetricsQL, run only in namespaces of --query-namespaces, and %s is none of them",
			clip(err.Error()), namespace)
	}
	matcher, err := labels.NewMatcher(labels.MatchEqual, s.label, namespace)
	if err != nil {
		return "", fmt.Errorf("make a matcher for namespace %q: %w", namespace, err)
	}
	if err := parser.Walk(&enforcer{matcher: matcher}, expr, nil); err != nil {
		return "", err
	}
	limited = expr.String()
	if len(limited) > maxLimited {
		return "", reject("length", "limited to namespace %s, the query has %d bytes; at most %d are allowed: use a recording rule",
			namespace, len(limited), maxLimited)
	}
	if !s.same(limited, expr, matcher) {
		return "", s.unprintable(namespace)
	}
	return limited, nil
}

func (s *Scope) unprintable(namespace string) error {
	return reject("syntax", "the query cannot be limited to namespace %s: write it another way, or use a recording rule", namespace)
}

// same reports whether the text that is about to be sent, parsed again, is the
// expression that was made, with the matcher in every selector.
func (s *Scope) same(limited string, want parser.Expr, matcher *labels.Matcher) bool {
	got, err := s.parser.ParseExpr(limited)
	if err != nil || parser.Tree(got) != parser.Tree(want) {
		return false
	}
	for _, selector := range parser.ExtractSelectors(got) {
		if !slices.ContainsFunc(selector, func(m *labels.Matcher) bool { return equal(m, matcher) }) {
			return false
		}
	}
	return true
}

func equal(a, b *labels.Matcher) bool {
	return a.Type == b.Type && a.Name == b.Name && a.Value == b.Value
}

// enforcer adds a matcher to every selector below an expression.
type enforcer struct {
	matcher *labels.Matcher
}

// Visit is parser.Visitor's.
func (e *enforcer) Visit(node parser.Node, path []parser.Node) (parser.Visitor, error) {
	if len(path) > maxDepth {
		return nil, reject("length", "the query is nested more than %d deep: use a recording rule", maxDepth)
	}
	switch n := node.(type) {
	case *parser.Call:
		if n.Func.Name == "info" {
			return nil, reject("namespace", "%s: the function info joins series that no selector limits to a namespace: join with on() and group_left() instead%s",
				clip(n.String()), orTrust(e.matcher.Value))
		}
	case *parser.VectorSelector:
		return e, e.enforce(n)
	}
	return e, nil
}

// enforce adds the matcher. A matcher of the same label that is another one is
// refused, even where both could hold: a query that asks for several namespaces
// and gets one would give a wrong number.
func (e *enforcer) enforce(v *parser.VectorSelector) error {
	has := false
	for _, m := range v.LabelMatchers {
		switch {
		case m.Name != e.matcher.Name:
		case !equal(m, e.matcher):
			return reject("namespace", "selector %s: the matcher %s is not allowed, because queries read only series with %s: remove it%s",
				clip(v.String()), clip(m.String()), e.matcher, orTrust(e.matcher.Value))
		default:
			has = true
		}
	}
	if has {
		return nil
	}
	// The parser takes the last matcher for the metric's name where there is one.
	v.LabelMatchers = slices.Insert(v.LabelMatchers, 0, e.matcher)
	return nil
}

func orTrust(namespace string) string {
	return ", or have the operator add " + namespace + " to --query-namespaces"
}

// clip shortens what an error shows of a query, between characters.
func clip(s string) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "?")), " ")
	if len(s) <= maxShown {
		return s
	}
	cut := maxShown
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// SPDX-License-Identifier: Apache-2.0

// Package scope limits PromQL queries to the series of one namespace. The
// controller runs the queries of all tenants with one account of the backend. Only
// this limit prevents a tenant from reading the series of another tenant.
package scope

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/base/weight"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
)

// The bounds of one query.
const (
	MaxLength = 4096 // bytes, as written
	// maxLimited bounds the length of the limited query: each selector gets one more
	// matcher, and a number such as 1e300 is printed in full.
	maxLimited = 16 << 10
	// maxDepth bounds the time of printing, which is proportional to depth × length.
	maxDepth = 64
	// maxShown bounds the part of a selector in an error, in bytes.
	maxShown = 160
)

// All means all namespaces in Config.Trusted.
const All = "*"

// Config holds the settings of a Scope.
type Config struct {
	// Label is the label of a series with its namespace. The backend must set it: if a
	// scraped pod can set it, it can impersonate other namespaces. "namespace".
	Label string
	// Trusted are the namespaces whose queries are not limited; All: every namespace.
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

// New makes a Scope, and checks the configuration.
func New(cfg Config) (*Scope, error) {
	if cfg.Label == "" {
		cfg.Label = "namespace"
	}
	if !labelName.MatchString(cfg.Label) || cfg.Label == model.MetricNameLabel {
		return nil, fmt.Errorf("%q is not the name of a label that can hold a namespace", cfg.Label)
	}
	return &Scope{
		label: cfg.Label, all: slices.Contains(cfg.Trusted, All), trusted: slices.Clone(cfg.Trusted),
		// Syntax that is unknown to this parser is refused here; the backend refuses
		// syntax that is unknown to it.
		parser: parser.NewParser(parser.Options{
			EnableExperimentalFunctions: true, ExperimentalDurationExpr: true, EnableExtendedRangeSelectors: true, EnableBinopFillModifiers: true,
		}),
	}, nil
}

// Rejection is the reason why a query is not allowed. Its text is for the author.
type Rejection struct {
	reason, text string
	weight       error // a *weight.Error, or nil
}

// Error implements error.
func (r *Rejection) Error() string { return r.text }

// Unwrap returns the *weight.Error of a query above its weight, or nil.
func (r *Rejection) Unwrap() error { return r.weight }

// RejectedFor returns the reason as a metric's label: length, syntax or namespace.
func (r *Rejection) RejectedFor() string { return r.reason }

func reject(reason, format string, args ...any) error {
	return &Rejection{reason: reason, text: fmt.Sprintf(format, args...)}
}

// weigh returns a Rejection if a query has too much of something.
func weigh(has string, n, most int) error {
	return rejectHeavy(weight.Check(weight.Query, has, n, most, "use a recording rule"))
}

func rejectHeavy(err error) error {
	if err == nil {
		return nil
	}
	return &Rejection{reason: "length", text: err.Error(), weight: err}
}

// Limit returns the query to run for a namespace. In a trusted namespace this is the
// query as written, which need not be PromQL: only the backend parses it. Elsewhere
// every selector gets the matcher label="namespace".
func (s *Scope) Limit(namespace, promql string) (limited string, trusted bool, err error) {
	if err := weigh("the query has %d bytes", len(promql), MaxLength); err != nil {
		return "", false, err
	}
	if s.all || slices.Contains(s.trusted, namespace) {
		return promql, true, nil
	}
	limited, err = s.limitToNamespace(namespace, promql)
	return limited, false, err
}

func (s *Scope) limitToNamespace(namespace, promql string) (limited string, err error) {
	defer func() {
		if p := recover(); p != nil { // the parser's printer panics on unexpected expressions
			limited, err = "", s.errCannotLimit(namespace)
		}
	}()
	if namespace == "" || namespace == All { // label="" would match series without the label
		return "", reject("namespace", "%q is not a namespace that a query can be limited to", namespace)
	}
	if err := rejectHeavy(queries.TextOf(promql).Weigh(maxDepth)); err != nil {
		return "", err
	}
	expr, err := s.parser.ParseExpr(promql)
	if err != nil {
		return "", reject("syntax", "%s. Extensions of PromQL, such as MetricsQL, run only in namespaces of --query-namespaces, which do not include %s",
			oneLine(err.Error()), namespace)
	}
	matcher, err := labels.NewMatcher(labels.MatchEqual, s.label, namespace)
	if err != nil {
		return "", fmt.Errorf("make a matcher for namespace %q: %w", namespace, err)
	}
	if err := parser.Walk(&enforcer{matcher: matcher}, expr, nil); err != nil {
		return "", err
	}
	limited = expr.String()
	if err := weigh("limited to its namespace, the query has %d bytes", len(limited), maxLimited); err != nil {
		return "", err
	}
	if !s.isEquivalent(limited, expr, matcher) {
		return "", s.errCannotLimit(namespace)
	}
	return limited, nil
}

func (s *Scope) errCannotLimit(namespace string) error {
	return reject("syntax", "the query cannot be limited to namespace %s: write it another way, or use a recording rule", namespace)
}

// isEquivalent reports whether the limited text, parsed again, is the limited
// expression, with the matcher in every selector.
func (s *Scope) isEquivalent(limited string, want parser.Expr, matcher *labels.Matcher) bool {
	got, err := s.parser.ParseExpr(limited)
	if err != nil || parser.Tree(got) != parser.Tree(want) {
		return false
	}
	for _, selector := range parser.ExtractSelectors(got) {
		if !slices.ContainsFunc(selector, func(m *labels.Matcher) bool { return equalMatchers(m, matcher) }) {
			return false
		}
	}
	return true
}

func equalMatchers(a, b *labels.Matcher) bool {
	return a.Type == b.Type && a.Name == b.Name && a.Value == b.Value
}

// enforcer adds a matcher to every selector below an expression.
type enforcer struct {
	matcher *labels.Matcher
}

// Visit implements parser.Visitor.
func (e *enforcer) Visit(node parser.Node, path []parser.Node) (parser.Visitor, error) {
	if err := weigh("the query is nested %d deep", len(path), maxDepth); err != nil {
		return nil, err
	}
	switch n := node.(type) {
	case *parser.Call:
		if n.Func.Name == "info" {
			return nil, reject("namespace", "%s: the function info joins series that no selector limits to the namespace: join with on() and group_left() instead%s",
				oneLine(n.String()), trustHint(e.matcher.Value))
		}
	case *parser.VectorSelector:
		return e, e.enforce(n)
	}
	return e, nil
}

// enforce adds the matcher to a selector. It rejects other matchers of the same label,
// even if both could match: a query for several namespaces that is limited to one
// would return a wrong number.
func (e *enforcer) enforce(v *parser.VectorSelector) error {
	has := false
	for _, m := range v.LabelMatchers {
		switch {
		case m.Name != e.matcher.Name:
		case !equalMatchers(m, e.matcher):
			return reject("namespace", "selector %s: the matcher %s is not allowed, because queries read only series with %s: remove it%s",
				oneLine(v.String()), oneLine(m.String()), e.matcher, trustHint(e.matcher.Value))
		default:
			has = true
		}
	}
	if has {
		return nil
	}
	// The parser expects the matcher of the metric's name, if there is one, at the end.
	v.LabelMatchers = slices.Insert(v.LabelMatchers, 0, e.matcher)
	return nil
}

func trustHint(namespace string) string {
	return ", or ask the operator to add " + namespace + " to --query-namespaces"
}

// oneLine returns a part of a query on one line, shortened for an error.
func oneLine(s string) string {
	return excerpt.Of(strings.Join(strings.Fields(s), " "), maxShown)
}

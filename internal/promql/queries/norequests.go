// SPDX-License-Identifier: Apache-2.0

package queries

import (
	"slices"

	"github.com/prometheus/prometheus/promql/parser"
)

// Without requests, a quotient of two rates is 0/0, which is NaN, and so is a quantile of a
// histogram without observations. Both sides were read then, and are 0: that is no missing
// value. What else is NaN, such as a series of that value, is missing.

// maxRewritten bounds a query in which quotients are rewritten, in bytes.
const maxRewritten = 16 << 10

// parserOfAll parses what any backend may evaluate.
var parserOfAll = parser.NewParser(parser.Options{
	EnableExperimentalFunctions: true, ExperimentalDurationExpr: true, EnableExtendedRangeSelectors: true, EnableBinopFillModifiers: true,
})

// Quotients reports whether an expression has quotients or quantiles, and whether one of them
// counts as 0 without requests. Those within a subquery do not: the value of now may have
// requests where an older one has none.
func Quotients(e parser.Expr) (has, counted bool) {
	parser.Inspect(e, func(n parser.Node, path []parser.Node) error {
		if !isQuotient(n) {
			return nil
		}
		has = true
		counted = counted || !slices.ContainsFunc(path, func(p parser.Node) bool { _, is := p.(*parser.SubqueryExpr); return is })
		return nil
	})
	return has, counted
}

// ofHistograms are the functions that divide by the observations of a histogram, with the
// index of the argument that has them.
var ofHistograms = map[string]int{"histogram_quantile": 1, "histogram_fraction": 2, "histogram_avg": 0}

func isQuotient(n parser.Node) bool {
	switch n := n.(type) {
	case *parser.BinaryExpr:
		return n.Op == parser.DIV && !isLiteral(n.RHS)
	case *parser.Call:
		_, ok := ofHistograms[n.Func.Name]
		return ok
	}
	return false
}

// isLiteral reports whether an expression is a number as written.
// maxNesting bounds the nesting of a query that is rewritten: the parser of the query that runs has a lower bound.
const maxNesting = 128

func isLiteral(e parser.Expr) bool {
	switch e := e.(type) {
	case *parser.NumberLiteral:
		return true
	case *parser.ParenExpr:
		return isLiteral(e.Expr)
	case *parser.UnaryExpr:
		return isLiteral(e.Expr)
	}
	return false
}

// WithoutRequests returns a query in which each quotient of 0 by 0 is 0. It is false if the
// query has none that counts.
func WithoutRequests(promql string) (rewritten string, ok bool) {
	defer func() {
		if recover() != nil { // the parser's printer panics on unexpected expressions
			rewritten, ok = "", false
		}
	}()
	if isLong(promql) {
		return "", false
	}
	e, err := parserOfAll.ParseExpr(promql)
	if err != nil {
		return "", false
	}
	if _, counted := Quotients(e); !counted {
		return "", false
	}
	var r rewriter
	text := r.expr(e).String()
	if _, err := parserOfAll.ParseExpr(text); r.failed || err != nil || isLong(text) {
		return "", false
	}
	return text, true
}

// rewriter rewrites the quotients of an expression, in place.
type rewriter struct{ failed bool }

func (r *rewriter) expr(e parser.Expr) parser.Expr {
	switch e := e.(type) {
	case *parser.ParenExpr:
		e.Expr = r.expr(e.Expr)
	case *parser.UnaryExpr:
		e.Expr = r.expr(e.Expr)
	case *parser.AggregateExpr:
		e.Expr = r.expr(e.Expr)
		if e.Param != nil {
			e.Param = r.expr(e.Param)
		}
	case *parser.BinaryExpr:
		e.LHS, e.RHS = r.expr(e.LHS), r.expr(e.RHS)
		if isQuotient(e) {
			return r.quotient(e)
		}
	case *parser.Call:
		for i := range e.Args {
			e.Args[i] = r.expr(e.Args[i])
		}
		if at, ok := ofHistograms[e.Func.Name]; ok && at < len(e.Args) {
			return r.ofHistogram(e, e.Args[at].String())
		}
	}
	return e
}

// quotient returns a quotient that is 0 where both sides are 0. The second part of the union
// has the labels of the first, and is NaN unless both sides are 0.
func (r *rewriter) quotient(e *parser.BinaryExpr) parser.Expr {
	left, right := e.LHS.String(), e.RHS.String()
	scalars := e.LHS.Type() == parser.ValueTypeScalar && e.RHS.Type() == parser.ValueTypeScalar
	if scalars {
		left, right = "vector("+left+")", "vector("+right+")"
	}
	ratio, both := *e, *e
	ratio.LHS, ratio.RHS = r.parse("("+left+")"), r.parse("("+right+")")
	both.LHS, both.RHS = r.parse("(1 / (("+left+") == bool 0))"), r.parse("(("+right+") == bool 0)")
	if r.failed {
		return e
	}
	text := "(" + ratio.String() + " >= -Inf or 0 * (" + both.String() + "))"
	if scalars {
		text = "scalar(" + text + ")"
	}
	return r.parse(text)
}

// ofHistogram returns a function of a histogram that is 0 where it has no observations: a
// classic one whose buckets are all 0, or a native one whose count is 0.
func (r *rewriter) ofHistogram(e *parser.Call, histogram string) parser.Expr {
	text := "(" + e.String() + " >= -Inf or 0 / (histogram_count(" + histogram + ") == bool 0)"
	if e.Func.Name != "histogram_avg" {
		text += " or 0 / (sum without (le) (" + histogram + ") == bool 0)"
	}
	return r.parse(text + ")")
}

// parse parses a part. Nested quotients grow with each level, up to maxRewritten.
func (r *rewriter) parse(text string) parser.Expr {
	if r.failed || len(text) > maxRewritten {
		r.failed = true
		return &parser.NumberLiteral{}
	}
	e, err := parserOfAll.ParseExpr(text)
	if err != nil {
		r.failed = true
		return &parser.NumberLiteral{}
	}
	return e
}

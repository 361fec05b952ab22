// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"slices"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// toOneNumber aggregates a query that may return several series: a query signal must
// return one number. Several series are added up for a target per replica, as the HPA does
// with external metrics. For a target of the whole, GPUs are averaged, and of other series
// the greatest counts.
func (c *converter) toOneNumber(expr parser.Expr, kind v1alpha1.TargetType, field string) parser.Expr {
	if isOneNumber(expr) {
		return expr
	}
	op := parser.ItemType(parser.MAX)
	if kind == v1alpha1.AverageValue {
		op = parser.SUM
	} else if metrics, _, ok := summands(expr); ok && len(metrics) == 1 && isGPUMetric(metrics[0]) {
		op = parser.AVG
	}
	c.result.note(field, "the query %q may return several series, and a signal needs one number: the %s of them is taken. Check that they are those of the workload",
		excerptOf(expr.String()), map[parser.ItemType]string{parser.MAX: "greatest", parser.SUM: "sum", parser.AVG: "mean"}[op])
	return &parser.AggregateExpr{Op: op, Expr: expr}
}

// noteWorkloadLabels notes labels of workloads in selectors of GPUs' series: those have the
// pod only, unless the exporter or the Prometheus adds labels.
func (c *converter) noteWorkloadLabels(expr parser.Expr, field string) {
	for _, s := range parser.ExtractSelectors(expr) {
		if !slices.ContainsFunc(s, func(m *labels.Matcher) bool {
			return m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual && isGPUMetric(m.Value)
		}) {
			continue
		}
		for _, m := range s {
			if slices.Contains([]string{"deployment", "statefulset", "service", "app"}, m.Name) {
				c.result.note(field, "the series of a GPU have no label %s, unless an exporter adds it: select the pods, such as pod=~%q", m.Name, c.result.Object.Spec.ScaleTargetRef.Name+"-.*")
			}
		}
	}
}

// isOneNumber reports whether an expression returns at most one series, whatever series
// there are. Grouping by the labels of fixed is none.
func isOneNumber(e parser.Expr, fixed ...string) bool {
	switch e := e.(type) {
	case *parser.ParenExpr:
		return isOneNumber(e.Expr, fixed...)
	case *parser.UnaryExpr:
		return isOneNumber(e.Expr, fixed...)
	case *parser.StepInvariantExpr:
		return isOneNumber(e.Expr, fixed...)
	case *parser.SubqueryExpr:
		return isOneNumber(e.Expr, fixed...)
	case *parser.NumberLiteral:
		return true
	case *parser.AggregateExpr:
		return isOneGroup(e, fixed)
	case *parser.BinaryExpr:
		return isOneOfTwo(e, fixed)
	case *parser.Call:
		switch e.Func.Name {
		case "vector", "scalar", "absent", "absent_over_time":
			return true
		case "histogram_quantile":
			fixed = append(fixed, "le")
		}
		return !slices.ContainsFunc(e.Args, func(x parser.Expr) bool {
			return x.Type() != parser.ValueTypeString && !isOneNumber(x, fixed...)
		})
	}
	return false
}

// isOneGroup reports whether an aggregation has one group: it groups by nothing, or by
// labels that all its selectors fix.
func isOneGroup(e *parser.AggregateExpr, fixed []string) bool {
	if slices.Contains([]parser.ItemType{parser.TOPK, parser.BOTTOMK, parser.COUNT_VALUES, parser.LIMITK, parser.LIMIT_RATIO}, e.Op) || e.Without {
		return false
	}
	selectors := parser.ExtractSelectors(e.Expr)
	return !slices.ContainsFunc(e.Grouping, func(name string) bool {
		return !slices.Contains(fixed, name) && (len(selectors) == 0 || slices.ContainsFunc(selectors, func(s []*labels.Matcher) bool {
			return !slices.ContainsFunc(s, func(m *labels.Matcher) bool { return m.Name == name && m.Type == labels.MatchEqual })
		}))
	})
}

// isOneOfTwo reports whether an operation returns one series: both sides are one, or one
// side is and each of its series matches one of the other side.
func isOneOfTwo(e *parser.BinaryExpr, fixed []string) bool {
	left, right := isOneNumber(e.LHS, fixed...), isOneNumber(e.RHS, fixed...)
	switch {
	case left && right:
		return true
	case e.VectorMatching == nil || e.Op == parser.LOR: // a scalar and a vector; both sides
		return false
	case e.Op == parser.LAND || e.Op == parser.LUNLESS:
		return left
	case e.VectorMatching.Card == parser.CardManyToOne:
		return left
	case e.VectorMatching.Card == parser.CardOneToMany:
		return right
	}
	return left || right
}

// ofWorkload limits the selectors of an adapter's query to the pods of the workload, by
// the prefix of their names. It is not ok if a selector leaves out the matchers of the
// request: then the query reads the pods of all workloads.
func ofWorkload(text, podLabel, workload string) (limited string, ok bool) {
	expr, err := queryParser.ParseExpr(text)
	if err != nil {
		return text, false
	}
	ok = true
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		v, isSelector := node.(*parser.VectorSelector)
		if !isSelector {
			return nil
		}
		at := slices.IndexFunc(v.LabelMatchers, func(m *labels.Matcher) bool {
			return m.Name == podLabel && m.Type == labels.MatchNotEqual && m.Value == ""
		})
		if at < 0 {
			ok = false
			return nil
		}
		m, err := labels.NewMatcher(labels.MatchRegexp, podLabel, podsOf(workload))
		if err != nil {
			return err
		}
		v.LabelMatchers[at] = m
		return nil
	})
	return expr.String(), ok
}

// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
)

// maxNarrow is the number of values up to which a join narrows its other side. A longer
// list costs more than it saves.
const maxNarrow = 500

// Narrow returns a query with the same result that reads fewer series. A join such as
//
//	max by(node,pod)(dcgm_gpu_utilization) * on(pod) group_left(label_app) kube_pod_labels{label_app="x"}
//
// evaluates both sides, although the result has only the pods of the right one. The
// query that Narrow returns selects these pods on the left side too. from and to are
// the times of the query. visible has the series that the query may read, so that pods
// of other namespaces change neither the query nor its cost. A query without such a join
// is returned as it is.
func (s *Store) Narrow(ctx context.Context, visible storage.Queryable, promql string, from, to time.Time) (string, error) {
	if !strings.Contains(promql, podMetricPrefix) {
		return promql, nil
	}
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(promql)
	if err != nil {
		return "", fmt.Errorf("parse the query: %w", err)
	}
	n := narrower{ctx: ctx, visible: visible, from: from.Add(-s.cfg.Lookback), to: to}
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		if b, ok := node.(*parser.BinaryExpr); ok && n.err == nil && !slices.ContainsFunc(path, isSubquery) {
			n.join(b)
		}
		return n.err
	})
	if n.err != nil {
		return "", n.err
	}
	if !n.changed {
		return promql, nil
	}
	return expr.String(), nil
}

const podMetricPrefix = "kube_pod_"

type narrower struct {
	ctx      context.Context
	visible  storage.Queryable
	from, to time.Time // of the samples that the query reads
	changed  bool
	err      error
}

// isSubquery reports whether a node evaluates its expression at other times.
func isSubquery(n parser.Node) bool { _, ok := n.(*parser.SubqueryExpr); return ok }

// join narrows one side of a join by the pods of the other. The narrowed side is the
// one that may have several series for a pod: on the other side, they are an error.
func (n *narrower) join(b *parser.BinaryExpr) {
	m := b.VectorMatching
	if m == nil || !m.On || !slices.Contains(m.MatchingLabels, "pod") || m.FillValues.LHS != nil || m.FillValues.RHS != nil {
		return
	}
	many, one := b.LHS, b.RHS
	switch {
	case m.Card == parser.CardManyToOne, b.Op == parser.LAND:
	case m.Card == parser.CardOneToMany:
		many, one = one, many
	default:
		return
	}
	target, source := onlySelector(many), onlySelector(one)
	if target != nil && source != nil && isPodMetric(source) && !isPodMetric(target) {
		n.narrow(source, target)
	}
}

// narrow adds a matcher of the pods that source selects to target.
func (n *narrower) narrow(source, target *parser.VectorSelector) {
	q, err := n.visible.Querier(n.from.UnixMilli(), n.to.UnixMilli())
	if err != nil {
		n.err = err
		return
	}
	defer func() { _ = q.Close() }()
	pods, _, err := q.LabelValues(n.ctx, "pod", nil, source.LabelMatchers...)
	if err != nil {
		n.err = err
		return
	}
	if len(pods) == 0 || len(pods) > maxNarrow {
		return
	}
	quoted := make([]string, len(pods))
	for i, p := range pods {
		quoted[i] = regexp.QuoteMeta(p)
	}
	matcher, err := labels.NewMatcher(labels.MatchRegexp, "pod", strings.Join(quoted, "|"))
	if len(pods) == 1 {
		matcher, err = labels.NewMatcher(labels.MatchEqual, "pod", pods[0])
	}
	if err != nil {
		n.err = err
		return
	}
	target.LabelMatchers = append(target.LabelMatchers, matcher)
	n.changed = true
}

// isPodMetric reports whether a selector selects a metric of pods by its exact name.
func isPodMetric(v *parser.VectorSelector) bool {
	return slices.ContainsFunc(podMetrics(), func(m podMetric) bool { return m.name == v.Name })
}

// onlySelector returns the selector of an expression whose result has the label pod of
// the selected series, and depends for each pod on that pod's series only; nil if the
// expression may be another one.
func onlySelector(e parser.Expr) *parser.VectorSelector {
	switch x := e.(type) {
	case *parser.ParenExpr:
		return onlySelector(x.Expr)
	case *parser.StepInvariantExpr:
		return onlySelector(x.Expr)
	case *parser.VectorSelector:
		if x.OriginalOffset != 0 || x.Offset != 0 || x.Timestamp != nil || x.StartOrEnd != 0 || x.OriginalOffsetExpr != nil {
			return nil
		}
		return x
	case *parser.AggregateExpr:
		simple := slices.Contains([]parser.ItemType{parser.SUM, parser.AVG, parser.MIN, parser.MAX, parser.COUNT, parser.GROUP}, x.Op)
		if simple && !x.Without && slices.Contains(x.Grouping, "pod") {
			return onlySelector(x.Expr)
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"slices"

	"github.com/prometheus/prometheus/promql/parser"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/promql/adapter"
)

// selectorOf returns the selector of a metric.
func selectorOf(s *metav1.LabelSelector) (labels.Selector, error) {
	if s == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(s)
}

// objectQuery returns the query that the adapter runs for a metric of one object, in the
// form of one number.
func objectQuery(r *adapter.Rule, series string, o *adapter.Objects, s *metav1.LabelSelector) (string, error) {
	var err error
	if o.Selector, err = selectorOf(s); err != nil {
		return "", err
	}
	text, _, err := r.Query(series, o)
	return text, err
}

// externalQuery returns the query that the adapter runs for an external metric.
func externalQuery(r *adapter.Rule, series, namespace string, s *metav1.LabelSelector) (string, error) {
	selector, err := selectorOf(s)
	if err != nil {
		return "", err
	}
	return r.ExternalQuery(series, namespace, selector)
}

// addRuleQuery adds the adapter's query for the pods of the workload, summed up: a target
// per replica is compared with the sum divided by the replicas.
func (c *converter) addRuleQuery(r *adapter.Rule, series string, m *metricID, value resource.Quantity, field string) {
	objects := adapter.Objects{Resource: podsResource, Namespace: c.namespace}
	query, err := objectQuery(r, series, &objects, m.Selector)
	if err != nil {
		c.result.lose(field, "the adapter's %s: %v", r.Path, err)
		return
	}
	query, ok := ofWorkload(query, r.Label(podsResource), c.result.Object.Spec.ScaleTargetRef.Name)
	if !ok {
		c.result.lose(field, "the adapter's %s: the query %q has a selector without <<.LabelMatchers>>, so that it reads the pods of all workloads: add them", r.Path, excerptOf(query))
		return
	}
	c.result.note(field, "the query is that of the adapter's %s, over the workload's pods. It selects them by the prefix of their names: check it", r.Path)
	c.addValueQuery(sumOf(query), value, v1alpha1.AverageValue, field)
}

// isPlain reports whether a rule's value of a pod is the mean, sum or maximum of the
// series, which a signal reads from the pod by itself.
func isPlain(r *adapter.Rule, series string) bool {
	_, ok := aggregateOf(r, series)
	return ok
}

// aggregateOf returns how a rule aggregates the series of a pod: avg, sum, max, min or,
// without an aggregation, an empty text. The series may be smoothed, such as by
// avg_over_time. It is not ok for other queries.
func aggregateOf(r *adapter.Rule, series string) (op string, ok bool) {
	text, err := r.Example(series)
	if err != nil {
		return "", false
	}
	expr, err := queryParser.ParseExpr(text)
	if err != nil {
		return "", false
	}
	expr = unsmoothed(expr)
	if e, isAggregate := expr.(*parser.AggregateExpr); isAggregate && e.Param == nil {
		op, expr = e.Op.String(), unsmoothed(e.Expr)
	}
	_, ok = expr.(*parser.VectorSelector)
	return op, ok
}

// unsmoothed returns what is within parentheses and functions that smooth.
func unsmoothed(e parser.Expr) parser.Expr {
	switch x := e.(type) {
	case *parser.ParenExpr:
		return unsmoothed(x.Expr)
	case *parser.MatrixSelector:
		return x.VectorSelector
	case *parser.Call:
		if len(x.Args) == 1 && slices.Contains(smoothing, x.Func.Name) {
			return unsmoothed(x.Args[0])
		}
	}
	return e
}

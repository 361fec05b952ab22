// SPDX-License-Identifier: Apache-2.0

package migrate

import (
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
	promql, _, err := r.Query(series, o)
	return promql, err
}

// externalQuery returns the query that the adapter runs for an external metric.
func externalQuery(r *adapter.Rule, series, namespace string, s *metav1.LabelSelector) (string, error) {
	selector, err := selectorOf(s)
	if err != nil {
		return "", err
	}
	return r.ExternalQuery(series, namespace, selector)
}

// addRuleQuery adds the adapter's query for all pods of the namespace, summed up: a target
// per replica is compared with the sum divided by the replicas.
func (c *converter) addRuleQuery(r *adapter.Rule, series string, m *metricID, value resource.Quantity, field string) {
	query, err := objectQuery(r, series, &adapter.Objects{Resource: podsResource, Namespace: c.namespace}, m.Selector)
	if err != nil {
		c.result.lose(field, "the adapter's %s: %v", r.Path, err)
		return
	}
	c.result.note(field, "the query is that of the adapter's %s, over all pods of the namespace: limit it to the workload's pods", r.Path)
	c.addValueQuery("sum("+query+")", value, v1alpha1.AverageValue, field)
}

// isPlain reports whether a rule's value of a pod is the mean, sum or maximum of the
// series as they are, which a signal reads from the pod by itself.
func isPlain(r *adapter.Rule, series string) bool {
	_, ok := aggregateOf(r, series)
	return ok
}

// aggregateOf returns how a rule aggregates the series of a pod: avg, sum, max, min or,
// without an aggregation, an empty text. It is not ok for other queries.
func aggregateOf(r *adapter.Rule, series string) (op string, ok bool) {
	promql, err := r.Example(series)
	if err != nil {
		return "", false
	}
	expr, err := queries.ParseExpr(promql)
	if err != nil {
		return "", false
	}
	if p, isParen := expr.(*parser.ParenExpr); isParen {
		expr = p.Expr
	}
	switch e := expr.(type) {
	case *parser.AggregateExpr:
		if _, plain := e.Expr.(*parser.VectorSelector); plain && e.Param == nil {
			return e.Op.String(), true
		}
	case *parser.VectorSelector:
		return "", true
	}
	return "", false
}

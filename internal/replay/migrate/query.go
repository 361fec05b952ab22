// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/promql/hostlabel"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
	"github.com/gpupilot/gpupilot/internal/promql/scope"
	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/scale/peers"
)

// queryParser parses the queries of objects as the controller does.
var queryParser = parser.NewParser(parser.Options{
	EnableExperimentalFunctions: true, ExperimentalDurationExpr: true, EnableExtendedRangeSelectors: true, EnableBinopFillModifiers: true,
})

// ownEngine parses what the controller's own windows evaluate.
var ownEngine = parser.NewParser(parser.Options{})

// metricName is a name that PromQL reads without quotes.
var metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)

// addValueQuery adds a query. If it may return several series, they are aggregated. What the controller would refuse is
// lost.
func (c *converter) addValueQuery(text string, value resource.Quantity, kind v1alpha1.TargetType, field string) {
	expr, err := queryParser.ParseExpr(text)
	if err != nil {
		if _, _, scoped := c.scope.Limit(c.checkedNamespace(), text); scoped != nil {
			err = scoped
		}
		c.loseQuery(field, text, value, kind, err)
		return
	}
	if kindOf := expr.Type(); kindOf != parser.ValueTypeVector && kindOf != parser.ValueTypeScalar {
		c.loseQuery(field, text, value, kind, fmt.Errorf("it returns a %s, and a signal needs one number", parser.DocumentedType(kindOf)))
		return
	}
	c.noteWorkloadLabels(expr, field)
	expr = c.toOneNumber(expr, kind, field)
	query := expr.String()
	if strings.Contains(query, "{{") {
		c.loseQuery(field, text, value, kind, fmt.Errorf("the query has {{%s", helmHint(query)))
		return
	}
	if _, _, err := c.scope.Limit(c.checkedNamespace(), query); err != nil {
		c.loseQuery(field, text, value, kind, err)
		return
	}
	if _, err := ownEngine.ParseExpr(query); err != nil {
		c.result.note(field, "the controller's own windows do not evaluate the query (%v): it needs --prometheus-url", err)
	}
	c.noteExporterLabels(expr, field)
	if use := hostlabel.Use(expr); use != "" {
		c.result.note(field, "%s", use)
	}
	c.noteNoRequests(expr, field)
	s := v1alpha1.Signal{Query: &v1alpha1.QuerySignal{PromQL: query}}
	c.add(s, value, kind, field)
	source, scale, mean, err := sourceOfQuery(query)
	if err != nil {
		c.result.unsimulated(field, "%v", err)
		return
	}
	k := peers.ObjectValue
	if kind == v1alpha1.AverageValue {
		k = peers.ExternalAverage
	}
	c.result.addPeerMetric(contender.HPAMetric{Kind: k, Source: source, Target: toFloat(value) * scale, Mean: mean, ZeroIfMissing: c.zeroIfMissing}, field)
}

// loseQuery says why a query has no equivalent. The note has the query and its target, so that nothing is lost.
func (c *converter) loseQuery(field, text string, value resource.Quantity, kind v1alpha1.TargetType, err error) {
	hint := ""
	if c.namespace == "" {
		hint = ". The object names no namespace: it is checked for default, and with -n for another one"
	}
	if !strings.Contains(err.Error(), "helm template") {
		hint += helmHint(text)
	}
	activation := ""
	if c.activation != nil {
		activation = ", activation " + c.activation.String()
	}
	c.result.lose(field, "the controller refuses the query %s (target %s %s%s): %v%s", shown(strings.Join(strings.Fields(text), " ")), kind, value.String(), activation, err, hint)
}

// checkedNamespace is the namespace for which queries are checked.
func (c *converter) checkedNamespace() string {
	if c.namespace == "" {
		return "default"
	}
	return c.namespace
}

// newScope limits queries as a controller without trusted namespaces does.
func newScope() *scope.Scope {
	s, err := scope.New(scope.Config{})
	if err != nil {
		panic(err) // there is nothing to check
	}
	return s
}

// noteExporterLabels notes selectors of the owner's labels beside those of the exporter: limited to the namespace, they
// match nothing where the exporter's own namespace is in the label.
func (c *converter) noteExporterLabels(expr parser.Expr, field string) {
	var found []string
	for _, s := range parser.ExtractSelectors(expr) {
		for _, m := range s {
			if m.Name == "exported_namespace" && !slices.Contains(found, m.String()) {
				found = append(found, m.String())
			}
		}
	}
	if len(found) == 0 {
		return
	}
	c.result.note(field, "%s: the controller adds namespace=%q to each selector. In its own windows that is the owner's namespace. In a Prometheus without honor_labels (--prometheus-url) "+
		"it is the exporter's, and the query stays empty: set honor_labels: true there, or --query-namespace-label=exported_namespace", strings.Join(found, ", "), c.checkedNamespace())
}

// noteNoRequests says what a quotient is without requests.
func (c *converter) noteNoRequests(expr parser.Expr, field string) {
	switch has, counted := queries.Quotients(expr); {
	case counted:
		c.result.note(field, "without requests the query is 0/0, which counts as 0. With a fallback of the signal (such as fallback: Hold) it is missing data. `or vector(0)` does not help: NaN is a value")
	case has:
		c.result.note(field, "without requests the query is 0/0, NaN, and the signal holds: the quotient is over a window of its own, so that 0/0 may be of the past. `or vector(0)` does not help: NaN is a value")
	}
}

// sumOf adds up the series of a query; the query itself if it is not PromQL.
func sumOf(query string) string {
	expr, err := queryParser.ParseExpr(query)
	if err != nil {
		return query
	}
	return (&parser.AggregateExpr{Op: parser.SUM, Expr: expr}).String()
}

// selector returns a selector of a metric's series, with matchers.
func selector(name, matchers string) string { return name + "{" + matchers + "}" }

// SPDX-License-Identifier: Apache-2.0

// Package hostlabel finds queries that use the node's label of old exporters.
package hostlabel

import (
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/promql/adapter"
)

// old is the node's label of dcgm-exporter up to 4.8.2 and in 1.x. Newer ones and the agent have hostname.
const old = "Hostname"

// queries parses more than one Prometheus does.
var queries = parser.NewParser(parser.Options{
	EnableExperimentalFunctions: true, ExperimentalDurationExpr: true, EnableExtendedRangeSelectors: true, EnableBinopFillModifiers: true,
})

// remedy says what to do about the old label.
const remedy = ": use hostname, or start the agents with --profile 4.8.2"

// Use says what the old label of the node does in a query of GPU metrics; empty: the query does not use it.
func Use(expr parser.Expr) string {
	if !slices.ContainsFunc(parser.ExtractSelectors(expr), func(s []*labels.Matcher) bool {
		return slices.ContainsFunc(s, func(m *labels.Matcher) bool { return m.Name == model.MetricNameLabel && isGPUMetric(m.Value) })
	}) {
		return ""
	}
	use := ""
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch x := n.(type) {
		case *parser.AggregateExpr:
			if !x.Without && slices.Contains(x.Grouping, old) {
				use = fmt.Sprintf("%s by (%s) merges the GPUs of all nodes, because the agents' label is hostname%s", x.Op, old, remedy)
			}
		case *parser.BinaryExpr:
			if m := x.VectorMatching; use == "" && m != nil && m.On && slices.Contains(m.MatchingLabels, old) {
				use = fmt.Sprintf("on (%s) matches series of other nodes, or fails, because the agents' label is hostname%s", old, remedy)
			}
		case *parser.VectorSelector:
			for _, m := range x.LabelMatchers {
				if use == "" && m.Name == old && !m.Matches("") {
					use = fmt.Sprintf("%s selects no series, because the agents' label is hostname%s", m, remedy)
				}
			}
		}
		return nil
	})
	return use
}

// useOf is Use of a text; empty if it is not PromQL.
func useOf(query string) string {
	expr, err := queries.ParseExpr(query)
	if err != nil {
		return ""
	}
	return Use(expr)
}

// Rules says which recording rules, alerts and rules of prometheus-adapter use the old label of the node.
func Rules(rules []*adapter.Rule, recorded, alerts map[string]string) []string {
	out := slices.Concat(usesOf("recording rule", recorded), usesOf("alert", alerts))
	for _, r := range rules {
		series, one := r.SeriesName()
		if !one || !isGPUMetric(series) {
			continue
		}
		use := ""
		if text, err := r.Example(series); err == nil {
			use = useOf(text)
		}
		for _, k := range r.Mapped() {
			if r.Label(k.GroupResource) == old {
				use = fmt.Sprintf("the label %s of %s selects no series, because the agents' label is hostname%s", old, k.String(), remedy)
			}
		}
		if use != "" {
			out = append(out, fmt.Sprintf("%s: %s", r.Path, use))
		}
	}
	return out
}

// usesOf is Use of each of the queries, with its kind and name.
func usesOf(kind string, queries map[string]string) (out []string) {
	for _, name := range slices.Sorted(maps.Keys(queries)) {
		if use := useOf(queries[name]); use != "" {
			out = append(out, fmt.Sprintf("%s %s: %s", kind, name, use))
		}
	}
	return out
}

func isGPUMetric(name string) bool {
	_, ok := names.Metric(name)
	return ok
}

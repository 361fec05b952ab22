// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/gpupilot/gpupilot/internal/promql/adapter"
)

// oldHostLabel is the node's label of dcgm-exporter up to 4.8.2 and in 1.x. Newer ones and the agent have hostname.
const oldHostLabel = "Hostname"

// useOldLabel says what to do about the old label.
const useOldLabel = ": use hostname, or start the agents with --profile 4.8.2"

// oldHostUse says what the old label of the node does in a query of GPU metrics; empty: the query does not use it.
func oldHostUse(expr parser.Expr) string {
	if !slices.ContainsFunc(parser.ExtractSelectors(expr), func(s []*labels.Matcher) bool {
		return slices.ContainsFunc(s, func(m *labels.Matcher) bool { return m.Name == model.MetricNameLabel && isGPUMetric(m.Value) })
	}) {
		return ""
	}
	use := ""
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch x := n.(type) {
		case *parser.AggregateExpr:
			if !x.Without && slices.Contains(x.Grouping, oldHostLabel) {
				use = fmt.Sprintf("%s by (%s) merges the GPUs of all nodes, because the agents' label is hostname%s", x.Op, oldHostLabel, useOldLabel)
			}
		case *parser.BinaryExpr:
			if m := x.VectorMatching; use == "" && m != nil && m.On && slices.Contains(m.MatchingLabels, oldHostLabel) {
				use = fmt.Sprintf("on (%s) matches series of other nodes, or fails, because the agents' label is hostname%s", oldHostLabel, useOldLabel)
			}
		case *parser.VectorSelector:
			for _, m := range x.LabelMatchers {
				if use == "" && m.Name == oldHostLabel && !m.Matches("") {
					use = fmt.Sprintf("%s selects no series, because the agents' label is hostname%s", m, useOldLabel)
				}
			}
		}
		return nil
	})
	return use
}

// oldHostUseOf is oldHostUse of a text; empty if it is not PromQL.
func oldHostUseOf(query string) string {
	expr, err := queryParser.ParseExpr(query)
	if err != nil {
		return ""
	}
	return oldHostUse(expr)
}

// oldHostRules says which recording rules and rules of prometheus-adapter use the old label of the node.
func oldHostRules(rules []*adapter.Rule, recorded map[string]string) (out []string) {
	for _, name := range slices.Sorted(maps.Keys(recorded)) {
		if use := oldHostUseOf(recorded[name]); use != "" {
			out = append(out, fmt.Sprintf("recording rule %s: %s", name, use))
		}
	}
	for _, r := range rules {
		series, one := r.SeriesName()
		if !one || !isGPUMetric(series) {
			continue
		}
		use := ""
		if text, err := r.Example(series); err == nil {
			use = oldHostUseOf(text)
		}
		for _, k := range r.Mapped() {
			if r.Label(k.GroupResource) == oldHostLabel {
				use = fmt.Sprintf("the label %s of %s selects no series, because the agents' label is hostname%s", oldHostLabel, k.String(), useOldLabel)
			}
		}
		if use != "" {
			out = append(out, fmt.Sprintf("%s: %s", r.Path, use))
		}
	}
	return out
}

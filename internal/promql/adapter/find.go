// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"slices"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// SeriesName returns the name that all series of the rule have; false if the selector
// allows several.
func (r *Rule) SeriesName() (string, bool) {
	for _, m := range r.Select {
		if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual {
			return m.Value, true
		}
	}
	return "", false
}

// Find finds the rule that makes a metric, and the name of its series, without knowing
// which series exist. The resource of an external metric is empty.
func (s *RuleSet) Find(name string, resource schema.GroupResource) (rule *Rule, series string, ok bool) {
	for _, r := range slices.Backward(s.Rules) {
		if r.External != (resource == schema.GroupResource{}) {
			continue
		}
		if _, err := r.mapping.label(resource); err != nil && !r.External {
			continue
		}
		candidates := []string{name, name + "_total", name + "_seconds_total", "container_" + name + "_total", "container_" + name + "_seconds_total"}
		if fixed, ok := r.SeriesName(); ok {
			candidates = []string{fixed}
		}
		for _, c := range candidates {
			if got, ok := r.Name(c); ok && got == name && r.allowsName(c) {
				return r, c, true
			}
		}
	}
	return nil, "", false
}

// allowsName reports whether the selector allows a name.
func (r *Rule) allowsName(name string) bool {
	return !slices.ContainsFunc(r.Select, func(m *labels.Matcher) bool { return m.Name == model.MetricNameLabel && !m.Matches(name) })
}

// MapsResources reports whether some labels are mapped to resources.
func (r *Rule) MapsResources() bool { return r.mapping.form != nil || len(r.mapping.labels) > 0 }

// Label returns the label with the name of a resource; empty: there is none.
func (r *Rule) Label(resource schema.GroupResource) string {
	label, err := r.mapping.label(resource)
	if err != nil {
		return ""
	}
	return label
}

// Example returns a query of the rule, for a pod named example.
func (r *Rule) Example(series string) (string, error) {
	m, err := newMatcher(true, "pod", "example")
	if err != nil {
		return "", err
	}
	return r.execute(series, []matcher{m}, "pod")
}

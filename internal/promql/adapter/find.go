// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// SeriesName returns the name that all series of the rule have; false if the selector
// allows several.
func (r *Rule) SeriesName() (string, bool) {
	names := r.seriesNames()
	if len(names) != 1 {
		return "", false
	}
	return names[0], true
}

// seriesNames returns the names that the selector allows, also if they are a regular
// expression such as ^queue$ or a|b; nil if they are not a list.
func (r *Rule) seriesNames() (out []string) {
	known := false
	for _, m := range r.Select {
		var names []string
		switch {
		case m.Name != model.MetricNameLabel:
			continue
		case m.Type == labels.MatchEqual:
			names = []string{m.Value}
		case m.Type == labels.MatchRegexp:
			names = m.SetMatches()
		}
		if len(names) > 0 && !known {
			known, out = true, slices.Clone(names)
		}
	}
	return slices.DeleteFunc(out, func(name string) bool { return !r.allowsName(name) })
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
		candidates := r.seriesNames()
		if len(candidates) == 0 {
			candidates = append(r.sources(name), name, name+"_total", name+"_seconds_total", "container_"+name+"_total", "container_"+name+"_seconds_total")
		}
		for _, c := range candidates {
			if got, ok := r.Name(c); ok && got == name && r.allowsName(c) {
				return r, c, true
			}
		}
	}
	return nil, "", false
}

// reference is a group in name.as.
var reference = regexp.MustCompile(`\$(?:\{(\w+)\}|(\w+))`)

// sources returns series whose name becomes that of a metric: the groups of name.matches
// take their values from name.as. It finds none if the expression has more than groups and
// literal text.
func (r *Rule) sources(name string) []string {
	var pattern strings.Builder
	at, groups := 0, []string{}
	for _, m := range reference.FindAllStringSubmatchIndex(r.as, -1) {
		pattern.WriteString(regexp.QuoteMeta(r.as[at:m[0]]) + "(.+?)")
		group := 2
		if m[2] < 0 {
			group = 4
		}
		groups, at = append(groups, r.as[m[group]:m[group+1]]), m[1]
	}
	pattern.WriteString(regexp.QuoteMeta(r.as[at:]))
	form, err := regexp.Compile("^" + pattern.String() + "$")
	if err != nil || len(groups) == 0 {
		return nil
	}
	found := form.FindStringSubmatch(name)
	if found == nil {
		return nil
	}
	values := map[string]string{}
	for i, group := range groups {
		values[group] = found[i+1]
	}
	tree, err := syntax.Parse(r.matches.String(), syntax.Perl)
	if err != nil {
		return nil
	}
	series, ok := fillIn(tree, values)
	if !ok {
		return nil
	}
	return []string{series}
}

// fillIn returns a text that an expression of literals and groups matches.
func fillIn(e *syntax.Regexp, values map[string]string) (string, bool) {
	switch e.Op {
	case syntax.OpEmptyMatch, syntax.OpBeginText, syntax.OpEndText, syntax.OpBeginLine, syntax.OpEndLine:
		return "", true
	case syntax.OpLiteral:
		return string(e.Rune), true
	case syntax.OpCapture:
		if v, ok := values[strconv.Itoa(e.Cap)]; ok {
			return v, true
		}
		v, ok := values[e.Name]
		return v, ok && e.Name != ""
	case syntax.OpConcat:
		out := ""
		for _, sub := range e.Sub {
			text, ok := fillIn(sub, values)
			if !ok {
				return "", false
			}
			out += text
		}
		return out, true
	}
	return "", false
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

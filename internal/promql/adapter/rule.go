// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	kubelabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Rule is a rule of the file, checked and compiled.
type Rule struct {
	// Path is the place in the file, such as rules[3].
	Path string
	// External is true for a rule of externalRules.
	External bool
	// Source is the rule as written.
	Source DiscoveryRule
	// Select selects the rule's series.
	Select []*labels.Matcher

	mapping    *mapping
	filters    []filter
	matches    *regexp.Regexp
	as         string
	query      *template.Template
	readsValue bool // the template reads LabelValuesByName
	namespaced bool
}

// filter is a condition for the name of a series.
type filter struct {
	pattern *regexp.Regexp
	is      bool
}

// RuleSet holds the rules of a file.
type RuleSet struct {
	Rules    []*Rule // of rules, and then of externalRules
	Warnings []string
	// Resource is true if the file has resourceRules, which are not served.
	Resource bool
}

// Load parses and compiles a file. An error is a list of all mistakes, each with the
// rule, the field and the value.
func Load(b []byte, kinds Kinds) (*RuleSet, error) {
	c, warnings, err := Parse(b)
	if err != nil {
		return nil, err
	}
	set, errs := Compile(&c, kinds)
	set.Warnings = append(warnings, set.Warnings...)
	return set, errs.ToAggregate()
}

// Compile compiles the rules. The set has those without mistakes.
func Compile(c *Config, kinds Kinds) (*RuleSet, field.ErrorList) {
	set := &RuleSet{Resource: c.ResourceRules != nil}
	var errs field.ErrorList
	add := func(in []DiscoveryRule, name string, external bool) {
		for i := range in {
			r, warnings, e := compile(&in[i], field.NewPath(name).Index(i), external, kinds)
			if errs = append(errs, e...); len(e) == 0 {
				set.Rules = append(set.Rules, r)
			}
			set.Warnings = append(set.Warnings, warnings...)
		}
	}
	add(c.Rules, "rules", false)
	add(c.ExternalRules, "externalRules", true)
	if set.Resource {
		set.Warnings = append(set.Warnings, NoResourceMetrics)
	}
	return set, errs
}

// NoResourceMetrics says what to do with resourceRules.
const NoResourceMetrics = "resourceRules: GPUPilot does not serve metrics.k8s.io (kubectl top, HPAs on cpu and memory). " +
	"Install metrics-server for it, or keep prometheus-adapter for the APIService v1beta1.metrics.k8s.io alone"

// selectors parses the selectors of files. Names of metrics and labels in quotes are
// allowed.
var selectors = parser.NewParser(parser.Options{EnableExperimentalFunctions: true})

func compile(in *DiscoveryRule, path *field.Path, external bool, kinds Kinds) (r *Rule, warnings []string, errs field.ErrorList) {
	r = &Rule{Path: path.String(), External: external, Source: *in, namespaced: true}
	if n := in.Resources.Namespaced; n != nil {
		r.namespaced = *n
	}
	var err error
	if strings.TrimSpace(in.SeriesQuery) == "" {
		errs = append(errs, field.Required(path.Child("seriesQuery"), `write a selector of series, such as DCGM_FI_DEV_GPU_UTIL{pod!=""}`))
	} else if r.Select, err = selectors.ParseMetricSelector(in.SeriesQuery); err != nil {
		errs = append(errs, field.Invalid(path.Child("seriesQuery"), in.SeriesQuery, "is not a PromQL selector: "+err.Error()))
	} else if !slices.ContainsFunc(r.Select, func(m *labels.Matcher) bool { return !m.Matches("") }) {
		errs = append(errs, field.Invalid(path.Child("seriesQuery"), in.SeriesQuery, "selects every series: name a metric, or a label that is not empty"))
	}
	for i := range in.SeriesFilters {
		f, err := newFilter(&in.SeriesFilters[i], path.Child("seriesFilters").Index(i))
		if err != nil {
			errs = append(errs, err)
		}
		r.filters = append(r.filters, f)
	}
	if err := r.compileName(&in.Name, path.Child("name")); err != nil {
		errs = append(errs, err)
	}
	mapped, warnings, e := newMapping(&in.Resources, kinds, path.Child("resources"))
	errs = append(errs, e...)
	warnings = append(warnings, r.setMapping(mapped, path)...)
	if err := r.compileQuery(path.Child("metricsQuery")); err != nil {
		errs = append(errs, err)
	}
	return r, warnings, errs
}

// setMapping sets the mapping of labels. A rule without one has no metrics: the warning
// says so. An external rule needs one only for the namespace.
func (r *Rule) setMapping(m *mapping, path *field.Path) (warnings []string) {
	r.mapping = m
	switch {
	case m.form != nil || len(m.labels) > 0:
	case !r.External:
		warnings = append(warnings, path.Child("resources").String()+": no label is mapped to a resource, so the rule has no metrics: add overrides or a template")
	case r.namespaced:
		m.labels[namespaces] = "namespace"
		warnings = append(warnings, path.Child("resources").String()+": no label is mapped to namespaces, which prometheus-adapter refuses at each request: "+
			"the label namespace is used. Add overrides, or namespaced: false")
	}
	return warnings
}

func newFilter(in *RegexFilter, path *field.Path) (filter, *field.Error) {
	switch {
	case in.Is != "" && in.IsNot != "":
		return filter{}, field.Invalid(path, in.Is, "is and isNot in one filter: write two filters")
	case in.Is == "" && in.IsNot == "":
		return filter{}, field.Required(path, "write is or isNot")
	}
	f := filter{is: in.Is != ""}
	text, name := in.IsNot, "isNot"
	if f.is {
		text, name = in.Is, "is"
	}
	p, err := regexp.Compile(text)
	if err != nil || len(text) > maxText {
		return filter{}, field.Invalid(path.Child(name), text, fmt.Sprintf("is not a regular expression: %v", err))
	}
	f.pattern = p
	return f, nil
}

func (r *Rule) compileName(in *NameMapping, path *field.Path) *field.Error {
	text := in.Matches
	if text == "" {
		text = ".*"
	}
	p, err := regexp.Compile(text)
	if err != nil || len(text) > maxText {
		return field.Invalid(path.Child("matches"), text, fmt.Sprintf("is not a regular expression: %v", err))
	}
	r.matches, r.as = p, in.As
	if in.As != "" {
		return nil
	}
	switch p.NumSubexp() {
	case 0:
		r.as = "$0"
	case 1:
		r.as = "$1"
	default:
		return field.Required(path.Child("as"), fmt.Sprintf("matches %q has %d groups: say which of them make up the name, such as ${1}_${2}", text, p.NumSubexp()))
	}
	return nil
}

// compileQuery compiles metricsQuery, and tries it.
func (r *Rule) compileQuery(path *field.Path) (bad *field.Error) {
	text := r.Source.MetricsQuery
	if strings.TrimSpace(text) == "" {
		return field.Required(path, "write a query, such as avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)")
	}
	var err error
	if r.query, err = parseTemplate(text); err != nil {
		return field.Invalid(path, text, err.Error())
	}
	r.readsValue = usesField(r.query.Root, "LabelValuesByName")
	example, _ := newMatcher(true, "namespace", "example")
	query, err := r.execute("example", []matcher{example}, "pod")
	if err == nil {
		_, err = selectors.ParseExpr(query)
	}
	if err != nil {
		return field.Invalid(path, text, "does not produce PromQL: "+err.Error())
	}
	return nil
}

// metricName is the name of a metric that PromQL reads without quotes. Names of series
// come from the exporters of tenants; others could end a selector.
var metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)

// maxName bounds the name of a metric, in bytes.
const maxName = 253

// Name returns the name of the metric for a series; false if the rule's filters exclude
// the series, or its name makes no valid one.
func (r *Rule) Name(series string) (string, bool) {
	if !metricName.MatchString(series) || len(series) > maxName {
		return "", false
	}
	for _, f := range r.filters {
		if f.pattern.MatchString(series) != f.is {
			return "", false
		}
	}
	groups := r.matches.FindStringSubmatchIndex(series)
	if groups == nil {
		return "", false
	}
	name := string(r.matches.ExpandString(nil, r.as, series, groups))
	return name, name != "" && len(name) <= maxName && !strings.ContainsAny(name, "/% \n")
}

// Kinds returns the resources that a series belongs to.
func (r *Rule) Kinds(ls labels.Labels) []Kind { return r.mapping.kindsOf(ls) }

// Mapped returns the resources and the labels of the rule's overrides, by label.
func (r *Rule) Mapped() map[string]Kind { return r.mapping.byLabel }

func (r *Rule) execute(series string, matchers []matcher, groupBy ...string) (string, error) {
	if r.readsValue {
		if err := checkPlain(matchers); err != nil {
			return "", err
		}
	}
	query, err := execute(r.query, newArguments(series, matchers, groupBy...))
	if err == nil && strings.TrimSpace(query) == "" {
		err = fmt.Errorf("the template produces an empty query")
	}
	return query, err
}

// Objects are the objects of a query.
type Objects struct {
	Resource  schema.GroupResource
	Namespace string   // empty for cluster-scoped objects
	Names     []string // empty: all objects of the namespace
	Selector  kubelabels.Selector
}

// Query returns the query for the metric of some objects, and the label with the names of
// the objects in its result.
func (r *Rule) Query(series string, o *Objects) (promql, label string, err error) {
	matchers, err := fromSelector(o.Selector)
	if err != nil {
		return "", "", err
	}
	if matchers, err = r.limitTo(o.Namespace, matchers); err != nil {
		return "", "", err
	}
	if label, err = r.mapping.label(o.Resource); err != nil {
		return "", "", err
	}
	if len(o.Names) == 0 {
		matchers = append(matchers, anyValue(label))
	} else {
		m, err := newMatcher(true, label, o.Names...)
		if err != nil {
			return "", "", err
		}
		matchers = append(matchers, m)
	}
	promql, err = r.execute(series, matchers, label)
	return promql, label, err
}

// ExternalQuery returns the query for an external metric.
func (r *Rule) ExternalQuery(series, namespace string, selector kubelabels.Selector) (string, error) {
	matchers, err := fromSelector(selector)
	if err != nil {
		return "", err
	}
	if r.namespaced {
		if matchers, err = r.limitTo(namespace, matchers); err != nil {
			return "", err
		}
	}
	return r.execute(series, matchers)
}

// limitTo adds the matcher of a namespace, unless it is empty.
func (r *Rule) limitTo(namespace string, matchers []matcher) ([]matcher, error) {
	if namespace == "" {
		return matchers, nil
	}
	label, err := r.mapping.label(namespaces)
	if err != nil {
		return nil, err
	}
	m, err := newMatcher(true, label, namespace)
	return append(matchers, m), err
}

// Batches reports whether one query for all objects of a namespace returns the same
// values as a query for each: the label of the objects must survive each aggregation and
// each join.
func (r *Rule) Batches(series, label string) bool {
	if r.readsValue {
		return false
	}
	query, err := r.execute(series, []matcher{anyValue(label)}, label)
	if err != nil {
		return false
	}
	expr, err := selectors.ParseExpr(query)
	if err != nil {
		return false
	}
	batches := true
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		batches = batches && keepsLabel(n, label)
		return nil
	})
	return batches
}

// mixing are functions whose result for one object can depend on the others, or that
// change labels.
var mixing = []string{"absent", "absent_over_time", "scalar", "vector", "label_replace", "label_join", "info", "sort_by_label", "sort_by_label_desc"}

// keepsLabel reports whether a node computes each value of a label by itself.
func keepsLabel(n parser.Node, label string) bool {
	switch n := n.(type) {
	case *parser.AggregateExpr:
		return slices.Contains(n.Grouping, label) != n.Without
	case *parser.BinaryExpr:
		m := n.VectorMatching
		return m == nil || slices.Contains(m.MatchingLabels, label) == m.On
	case *parser.Call:
		return !slices.Contains(mixing, n.Func.Name)
	case *parser.VectorSelector:
		return slices.ContainsFunc(n.LabelMatchers, func(x *labels.Matcher) bool {
			return x.Name == label && x.Type == labels.MatchNotEqual && x.Value == ""
		})
	}
	return true
}

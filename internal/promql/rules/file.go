// SPDX-License-Identifier: Apache-2.0

// Package rules evaluates Prometheus's recording rules, from files and PrometheusRule
// objects. Their results are series for PromQL and, with a namespace and the label of a
// resource, custom metrics of objects.
package rules

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"go.yaml.in/yaml/v3"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
)

// The bounds of one file or object.
const (
	MaxFileBytes = 1 << 20
	maxRules     = 1000 // recording rules of one file
	maxLabels    = 30   // of a rule or a group
	maxLabelText = 1024 // bytes of a label's value
	maxRecord    = 256  // bytes of a metric's name
)

// Group is a group of recording rules, which are evaluated in order.
type Group struct {
	Name     string
	Interval time.Duration // 0: the default
	Offset   time.Duration // how far back the rules are evaluated
	Limit    int           // of the series of one rule; 0: only the default limit
	Rules    []Rule
	Alerts   int // alerting rules, which are not evaluated
}

// Rule is a recording rule.
type Rule struct {
	Record string
	Expr   string
	Labels map[string]string // of the rule and its group

	selectors [][]*labels.Matcher
}

// Checker checks the text of a query and returns the matchers of its selectors.
// engine.Engine's method Selectors is one.
type Checker func(promql string) ([][]*labels.Matcher, error)

// The format of files, and of a PrometheusRule's spec.
type fileFormat struct {
	Groups []groupFormat `yaml:"groups"`
}

type groupFormat struct {
	Name     string            `yaml:"name"`
	Interval string            `yaml:"interval"`
	Offset   string            `yaml:"query_offset"`
	Limit    int               `yaml:"limit"`
	Labels   map[string]string `yaml:"labels"`
	Rules    []ruleFormat      `yaml:"rules"`
	// Partial is Thanos's.
	Partial string `yaml:"partial_response_strategy"`
}

type ruleFormat struct {
	Record      string            `yaml:"record"`
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	KeepFiring  string            `yaml:"keep_firing_for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// Parse reads rules in Prometheus's format. The error names the group and the rule.
// Alerting rules are counted, not read, and groups without other rules are left out.
func Parse(content []byte, check Checker) ([]Group, error) {
	if len(content) > MaxFileBytes {
		return nil, fmt.Errorf("the rules have %d bytes; at most %d are allowed", len(content), MaxFileBytes)
	}
	var f fileFormat
	d := yaml.NewDecoder(bytes.NewReader(content))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	var (
		out   []Group
		names = map[string]bool{}
		total int
	)
	for i := range f.Groups {
		g, err := readGroup(&f.Groups[i], check)
		if err != nil {
			return nil, err
		}
		if names[g.Name] {
			return nil, fmt.Errorf("group %q appears twice: give each group a name of its own", g.Name)
		}
		names[g.Name] = true
		if total += len(g.Rules); total > maxRules {
			return nil, fmt.Errorf("more than %d recording rules: split the rules into several files", maxRules)
		}
		if len(g.Rules) > 0 {
			out = append(out, g)
		}
	}
	return out, nil
}

func readGroup(f *groupFormat, check Checker) (g Group, err error) {
	g = Group{Name: f.Name, Limit: f.Limit}
	if f.Name == "" {
		return g, errors.New("a group has no name: give each group a name of its own")
	}
	if f.Limit < 0 {
		return g, fmt.Errorf("group %q: limit is %d; it must not be negative", f.Name, f.Limit)
	}
	if g.Interval, err = duration("interval", f.Interval); err != nil {
		return g, fmt.Errorf("group %q: %w", f.Name, err)
	}
	if g.Offset, err = duration("query_offset", f.Offset); err != nil {
		return g, fmt.Errorf("group %q: %w", f.Name, err)
	}
	for i := range f.Rules {
		r := &f.Rules[i]
		switch {
		case r.Record != "" && r.Alert != "":
			return g, fmt.Errorf("group %q, rule %d: record is %q and alert is %q: give one of them", f.Name, i+1, r.Record, r.Alert)
		case r.Alert != "":
			g.Alerts++
			continue
		}
		rule, err := readRule(r, f.Labels, check)
		if err != nil {
			return g, fmt.Errorf("group %q, rule %d (%s): %w", f.Name, i+1, r.Record, err)
		}
		g.Rules = append(g.Rules, rule)
	}
	return g, nil
}

func duration(field, s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	d, err := model.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", field, err)
	}
	return time.Duration(d), nil
}

func readRule(r *ruleFormat, common map[string]string, check Checker) (Rule, error) {
	out := Rule{Record: r.Record, Expr: r.Expr, Labels: map[string]string{}}
	switch {
	case r.Record == "":
		return out, errors.New("record is empty: name the metric, such as team:gpu_utilization:avg")
	case !model.LegacyValidation.IsValidMetricName(r.Record), len(r.Record) > maxRecord:
		return out, fmt.Errorf("record %q is not the name of a metric with at most %d bytes", excerpt.Of(r.Record, maxText), maxRecord)
	case r.Expr == "":
		return out, errors.New("expr is empty")
	case r.For != "" || r.KeepFiring != "" || len(r.Annotations) > 0:
		return out, errors.New("for, keep_firing_for and annotations belong to alerting rules: remove them")
	}
	maps.Copy(out.Labels, common)
	maps.Copy(out.Labels, r.Labels)
	if len(out.Labels) > maxLabels {
		return out, fmt.Errorf("%d labels; at most %d are allowed", len(out.Labels), maxLabels)
	}
	for _, name := range slices.Sorted(maps.Keys(out.Labels)) {
		if !model.LegacyValidation.IsValidLabelName(name) || name == model.MetricNameLabel {
			return out, fmt.Errorf("labels: %q is not the name of a label", name)
		}
		if v := out.Labels[name]; len(v) > maxLabelText || !model.LabelValue(v).IsValid() {
			return out, fmt.Errorf("labels: the value of %s is longer than %d bytes or no UTF-8", name, maxLabelText)
		}
	}
	var err error
	if out.selectors, err = check(r.Expr); err != nil {
		return out, fmt.Errorf("expr: %w", err)
	}
	seen := map[string]bool{}
	out.selectors = slices.Clip(slices.DeleteFunc(out.selectors, func(selector []*labels.Matcher) bool {
		text := fmt.Sprint(selector)
		twice := seen[text]
		seen[text] = true
		return twice
	}))
	return out, nil
}

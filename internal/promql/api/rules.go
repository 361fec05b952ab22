// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/prometheus/util/annotations"

	"github.com/gpupilot/gpupilot/internal/promql/rules"
)

// RuleGroup is a group of recording rules as /api/v1/rules shows it.
type RuleGroup struct {
	Name           string    `json:"name"`
	File           string    `json:"file"`
	Interval       float64   `json:"interval"` // seconds
	Limit          int       `json:"limit"`
	Rules          []Rule    `json:"rules"`
	EvaluationTime float64   `json:"evaluationTime"` // seconds
	LastEvaluation time.Time `json:"lastEvaluation"`
}

// Rule is a recording rule.
type Rule struct {
	Name           string            `json:"name"`
	Query          string            `json:"query"`
	Labels         map[string]string `json:"labels,omitempty"`
	Health         string            `json:"health"` // ok, err or unknown
	LastError      string            `json:"lastError,omitempty"`
	EvaluationTime float64           `json:"evaluationTime"` // seconds
	LastEvaluation time.Time         `json:"lastEvaluation"`
	Type           string            `json:"type"` // recording
}

// rules answers with the groups of recording rules.
func (a *API) rules(r *http.Request, v Viewer) (any, annotations.Annotations, error) {
	groups := []RuleGroup{}
	if a.deps.Rules != nil && r.FormValue("type") != "alert" {
		groups = append(groups, a.deps.Rules(v)...)
	}
	return map[string][]RuleGroup{"groups": groups}, nil, nil
}

// GroupsFor returns the groups of rules that a viewer may see.
func GroupsFor(v Viewer, all []rules.GroupState) []RuleGroup {
	var out []RuleGroup
	for _, g := range all {
		if v.Namespaces != nil && !slices.Contains(v.Namespaces, g.Source.Namespace) {
			continue
		}
		x := RuleGroup{Name: g.Group.Name, File: g.Source.ID, Interval: g.Interval.Seconds(), Limit: g.Group.Limit, Rules: []Rule{}}
		for i := range g.Rules {
			s := &g.Rules[i]
			health := "ok"
			switch {
			case s.At.IsZero():
				health = "unknown"
			case s.Error != "":
				health = "err"
			}
			x.Rules = append(x.Rules, Rule{
				Name: s.Rule.Record, Query: s.Rule.Expr, Labels: s.Rule.Labels, Health: health, LastError: s.Error,
				EvaluationTime: s.Took.Seconds(), LastEvaluation: s.At, Type: "recording",
			})
			x.EvaluationTime += s.Took.Seconds()
			x.LastEvaluation = s.At
		}
		out = append(out, x)
	}
	return out
}

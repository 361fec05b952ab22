// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"time"

	"github.com/prometheus/prometheus/util/annotations"
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

// SPDX-License-Identifier: Apache-2.0

// Package doctor looks for what is wrong around GPUPilot in a cluster, and says what it breaks
// and what to do. It only reads.
package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Level is how bad a finding is.
type Level string

// The levels.
const (
	Error   Level = "error"
	Warning Level = "warning"
)

// Group is a part of the checks.
type Group string

// The groups.
const (
	Pre      Group = "pre" // before an installation
	Node     Group = "node"
	Metrics  Group = "metrics"
	Scaling  Group = "scaling"
	Trust    Group = "trust"
	Capacity Group = "capacity"
)

// Groups are all groups, in the order in which they are printed.
var Groups = []Group{Pre, Node, Metrics, Scaling, Trust, Capacity}

// Check is one thing that can be wrong. Its code never changes its meaning.
type Check struct {
	Code  string
	Group Group
	Level Level
	Title string // what is true if the check passes
	Fix   string
	at    []evidence             // what it looks at; it passes only if all of that could be read
	run   func(*Facts) []Finding // what is wrong with it
}

// Finding is one object for which a check fails.
type Finding struct {
	Object  string `json:"object"`  // KIND NAMESPACE/NAME
	Message string `json:"message"` // what is wrong, and what it breaks
}

// Status is the outcome of a check.
type Status string

// The outcomes.
const (
	Passed  Status = "ok"
	Failed  Status = "failed"
	Unknown Status = "could-not-check" // never counts as passed
)

// Result is a check with its outcome.
type Result struct {
	Code     string    `json:"code"`
	Group    Group     `json:"group"`
	Level    Level     `json:"level"`
	Title    string    `json:"title"`
	Status   Status    `json:"status"`
	Looked   string    `json:"looked,omitempty"` // what it looked at: numbers of objects
	Reason   string    `json:"reason,omitempty"` // why it could not run
	Findings []Finding `json:"findings,omitempty"`
	Omitted  int       `json:"omittedFindings,omitempty"`
	Fix      string    `json:"fix,omitempty"`
	Docs     string    `json:"docs,omitempty"`
}

// maxFindings bounds the findings of a check that are kept.
const maxFindings = 50

// Selection selects checks by their groups and codes.
type Selection struct {
	Pre        bool     // only the checks before an installation
	Only, Skip []string // groups and codes
}

// Checks returns all checks, by code.
func Checks() []Check {
	all := slices.Concat(preChecks, nodeChecks, metricsChecks, scalingChecks, podChecks, boundsChecks, trustChecks, capacityChecks)
	slices.SortFunc(all, func(a, b Check) int { return strings.Compare(a.Code, b.Code) })
	return all
}

// Select returns the selected checks. A name that is no group and no code is an error.
func (s *Selection) Select() ([]Check, error) {
	all := Checks()
	matches := func(c *Check, names []string) bool {
		return slices.ContainsFunc(names, func(n string) bool {
			return strings.EqualFold(n, c.Code) || strings.EqualFold(n, string(c.Group))
		})
	}
	for _, name := range slices.Concat(s.Only, s.Skip) {
		if !slices.ContainsFunc(all, func(c Check) bool { return matches(&c, []string{name}) }) {
			return nil, fmt.Errorf("%.40q is no group (%v) and no code of a check", name, Groups)
		}
	}
	return slices.DeleteFunc(all, func(c Check) bool {
		return s.Pre != (c.Group == Pre) && (s.Pre || !matches(&c, s.Only)) || len(s.Only) > 0 && !matches(&c, s.Only) || matches(&c, s.Skip)
	}), nil
}

// Run runs checks on what was read.
func Run(checks []Check, f *Facts) []Result {
	out := make([]Result, 0, len(checks))
	for i := range checks {
		c := &checks[i]
		r := Result{Code: c.Code, Group: c.Group, Level: c.Level, Title: c.Title, Status: Passed}
		findings := c.run(f)
		var err error
		r.Looked, err = looked(c.at, f)
		slices.SortFunc(findings, func(a, b Finding) int {
			return cmp.Or(strings.Compare(a.Object, b.Object), strings.Compare(a.Message, b.Message))
		})
		switch {
		case len(findings) > 0:
			r.Status, r.Fix, r.Docs = Failed, c.Fix, "docs/doctor.md#"+strings.ToLower(c.Code)
			r.Omitted = max(0, len(findings)-maxFindings)
			r.Findings = findings[:len(findings)-r.Omitted]
		case err != nil:
			r.Status, r.Reason = Unknown, err.Error()
		}
		out = append(out, r)
	}
	return out
}

// ExitCode is that of the command: 0 nothing is wrong, 1 warnings with strict, 2 errors, 3 a
// check could not run.
func ExitCode(results []Result, strict bool) int {
	code := 0
	for i := range results {
		r := &results[i]
		switch {
		case r.Status == Failed && r.Level == Error:
			return 2
		case r.Status == Unknown:
			code = 3
		case r.Status == Failed && strict && code == 0:
			code = 1
		}
	}
	return code
}

// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
)

// The reasons of problems.
const (
	ReasonRefused         = "RulesRefused"    // the newest version of a source is not evaluated
	ReasonFailed          = "RuleFailed"      // a rule fails at each evaluation
	ReasonUnknownResource = "UnknownResource" // a rule's results are no custom metric
)

// Problem is what is wrong with a source now.
type Problem struct {
	Source string // its ID
	Reason string
	Text   string
}

// steadyFailures is the number of failed evaluations, one after another, from which on
// a rule has a problem: one alone may be a query that had to wait too long.
const steadyFailures = 2

// Problems returns what is wrong with the sources now: at most one problem of each
// reason for a source, sorted.
func (m *Manager) Problems() (out []Problem) {
	m.mu.Lock()
	for id, o := range m.offered {
		if o.problem != "" {
			out = append(out, Problem{id, ReasonRefused, o.problem})
		}
		if record := o.source.unknownResource(m.cfg.Label); record != "" {
			out = append(out, Problem{id, ReasonUnknownResource, fmt.Sprintf("%s has the label %s, and none that names a resource such as deployment, service or pod: it is a series for PromQL, and no custom metric", record, m.cfg.Label)})
		}
	}
	m.mu.Unlock()
	groups := m.Groups()
	for i := 0; i < len(groups); {
		first := i
		for i < len(groups) && groups[i].Source.ID == groups[first].Source.ID {
			i++
		}
		if text := failing(groups[first:i]); text != "" {
			out = append(out, Problem{groups[first].Source.ID, ReasonFailed, text})
		}
	}
	slices.SortFunc(out, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.Source, b.Source), strings.Compare(a.Reason, b.Reason))
	})
	return out
}

// failing describes the first rule of a source that fails steadily, and counts the
// others; empty if none does.
func failing(groups []GroupState) (text string) {
	others := 0
	for i := range groups {
		for j := range groups[i].Rules {
			s := &groups[i].Rules[j]
			switch {
			case s.Failures < steadyFailures:
			case text == "":
				text = fmt.Sprintf("group %q, rule %s: %s", groups[i].Group.Name, s.Rule.Record, excerpt.Of(s.Error, maxText))
			default:
				others++
			}
		}
	}
	if others > 0 {
		text += fmt.Sprintf("; %d more rules fail", others)
	}
	return text
}

// unknownResource returns the record of the first rule of the source whose results are
// no custom metric because of its labels; empty: there is none.
func (s *Source) unknownResource(namespaceLabel string) string {
	for i := range s.Groups {
		if record := s.Groups[i].unknownResource(namespaceLabel); record != "" {
			return record
		}
	}
	return ""
}

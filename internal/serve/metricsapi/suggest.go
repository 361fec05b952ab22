// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// The bounds of suggestions for an unknown name.
const (
	maxSuggestions   = 5
	maxSuggestedName = 100 // bytes; longer names are not compared
)

// unknownMetric returns the error for a metric that nobody serves, with the names that
// are most like it.
func (p *Provider) unknownMetric(metric string) error {
	close := p.closeTo(metric)
	hint := ""
	if len(close) > 0 {
		hint = "; did you mean " + strings.Join(close, ", ") + "?"
	}
	return notFound("metric %s is not known: no profile has a GPU field of this name, no autoscaler reads a pod metric of this name, and no rule has it%s", excerptOf(metric), hint)
}

// closeTo returns up to maxSuggestions names like an unknown one, the closest first.
func (p *Provider) closeTo(metric string) []string {
	if len(metric) > maxSuggestedName {
		return nil
	}
	if at := strings.LastIndex(metric, ":"); at > 0 {
		if _, _, ok := parseSuffix(metric[at:]); ok {
			metric = metric[:at]
		}
	}
	all := names.All()
	for _, m := range p.ListAllMetrics() {
		all = append(all, m.Metric)
	}
	slices.Sort(all)
	type candidate struct {
		name     string
		distance int
	}
	var found []candidate
	want, limit := strings.ToLower(metric), max(2, len(metric)/4)
	var rows [2][]int
	for _, name := range slices.Compact(all) {
		if len(name) > maxSuggestedName || name == metric {
			continue
		}
		if d := editDistance(&rows, want, strings.ToLower(name), limit); d <= limit {
			found = append(found, candidate{name, d})
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(a.distance, b.distance) })
	var out []string
	for _, c := range found[:min(len(found), maxSuggestions)] {
		out = append(out, c.name)
	}
	return out
}

// editDistance returns the number of bytes to insert, delete or replace to make b from
// a, or a number above limit. rows is scratch memory.
func editDistance(rows *[2][]int, a, b string, limit int) int {
	if diff := len(a) - len(b); diff > limit || -diff > limit {
		return limit + 1
	}
	for i := range rows {
		rows[i] = slices.Grow(rows[i][:0], len(b)+1)[:len(b)+1]
	}
	last, row := rows[0], rows[1]
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		best := row[0]
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j]+cost, last[j+1]+1, row[j]+1)
			best = min(best, row[j+1])
		}
		if best > limit {
			return limit + 1
		}
		last, row = row, last
	}
	return last[len(b)]
}

// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"strings"

	"github.com/gpupilot/gpupilot/internal/base/promtext"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// maxSuggestions bounds the suggestions for an unknown name.
const maxSuggestions = 5

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
	if at := strings.LastIndex(metric, ":"); at > 0 {
		if _, _, ok := parseSuffix(metric[at:]); ok {
			metric = metric[:at]
		}
	}
	all := names.All()
	for _, m := range p.ListAllMetrics() {
		all = append(all, m.Metric)
	}
	return promtext.Closest(metric, all, maxSuggestions)
}

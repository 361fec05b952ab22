// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"slices"
	"sync/atomic"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

// withheld are the aggregates that gaps withhold.
type withheld struct {
	gaps []usage.Gap // that list is made from
	list []engine.Incomplete
}

// Incomplete returns a function for engine.Config: the aggregates that are absent because
// pods have no value, and the results of rules that lack them. Each list of gaps is read
// once.
func Incomplete(results *Store, gaps func() []usage.Gap) func() []engine.Incomplete {
	var last atomic.Pointer[withheld]
	return func() []engine.Incomplete {
		now, recorded := gaps(), results.Incomplete()
		known := last.Load()
		if known == nil || len(known.gaps) != len(now) || len(now) > 0 && &known.gaps[0] != &now[0] {
			known = &withheld{gaps: now}
			for i := range now {
				l := labels.FromMap(now[i].Labels())
				for _, metric := range now[i].Metrics() {
					known.list = append(known.list, engine.Incomplete{Metric: metric, Labels: l, Why: now[i].Why})
				}
			}
			last.Store(known)
		}
		if len(recorded) == 0 {
			return known.list
		}
		return slices.Concat(known.list, recorded)
	}
}

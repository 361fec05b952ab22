// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"github.com/gpupilot/gpupilot/internal/scale/facts"
	"github.com/gpupilot/gpupilot/internal/scale/trend"
)

// trendMost bounds a forecast, as a multiple of the current demand.
const trendMost = 1.5

// forecast raises want to what the signal will need when replicas that are
// started now serve. It never lowers want.
func (e *evaluation) forecast(want int32, m measure) int32 {
	if e.p.Startup <= 0 || e.p.Down.Window == 0 {
		e.state.Trend = trend.Trend{}
		return want
	}
	if e.reduced {
		return want // the load of the few that serve is no trend
	}
	before := e.state.Trend
	if !e.isHidden(m) {
		e.state.Trend = before.Next(m.up, e.now, e.p.Startup)
	}
	demand := min(e.state.Trend.Ahead(), trendMost*m.up)
	if !before.IsProven() || demand <= float64(max(want, e.base()))*(1+e.p.upTolerance(e.signal)) {
		return want
	}
	return e.step(RuleForecast, want, max(want, facts.Replicas(demand)), facts.Forecast{Demand: demand, Wait: e.p.Startup})
}

// isHidden reports whether the signal does not show the load, so that its value
// is no sample of the demand.
func (e *evaluation) isHidden(m measure) bool {
	if e.signal.Type != AverageValue {
		return false
	}
	return e.signal.Ceiling > 0 && m.value >= saturation*e.signal.Ceiling ||
		e.signal.Law == Batching && m.value > backlogFrom*e.takes.target
}

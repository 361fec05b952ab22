// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"time"
)

// Trend is a forecast of one signal's demand for the time at which a replica
// that is started now serves: Holt's linear method, damped. Its errors are
// compared with those of the naive forecast, which expects no change. It is
// used only while its errors are clearly smaller.
type Trend struct {
	Step  time.Duration `json:"step"` // between samples: an eighth of a start-up
	At    time.Time     `json:"at"`   // of the last sample
	Level float64       `json:"level"`
	Slope float64       `json:"slope"` // per step

	// Past holds the samples of the last start-up and their forecasts, oldest first.
	Past []Forecast `json:"past,omitempty"`
	// Naive and Holt are the mean errors of the two forecasts. Older errors weigh
	// less. Judged is the number of errors, up to leastJudged.
	Naive  float64 `json:"naive"`
	Holt   float64 `json:"holt"`
	Judged int32   `json:"judged"`
}

// Forecast is a sample of the demand, and the demand that was forecast for one
// start-up later.
type Forecast struct {
	Seen  float64 `json:"seen"`
	Ahead float64 `json:"ahead"`
}

const (
	// trendSteps is the number of samples per start-up.
	trendSteps = 8
	// leastTrendStep is the shortest time between samples, for replicas that start
	// within seconds.
	leastTrendStep = 5 * time.Second
	// Holt's weights: of the newest sample, of the newest slope, and the share of a
	// slope that lasts until the next step.
	trendLevel, trendSlope, trendDamping = 0.5, 0.2, 0.95
	// errorWeight is the weight of the newest error: the mean is over about twenty.
	errorWeight = 0.05
	// leastJudged is how many forecasts must have been judged: three start-ups.
	leastJudged = 3 * trendSteps
	// trendBetter bounds the forecast's mean error, as a share of the naive one's.
	trendBetter = 0.7
	// trendMost bounds a forecast, as a multiple of the current demand.
	trendMost = 1.5
)

// next is the trend after the demand x was read at now, for replicas that take
// startup to serve.
func (t Trend) next(x float64, now time.Time, startup time.Duration) Trend {
	step := max(leastTrendStep, startup/trendSteps)
	since := now.Sub(t.At)
	switch {
	case t.At.IsZero(), since < 0, since > 4*t.Step, t.Step > 2*step, step > 2*t.Step:
		return Trend{Step: step, At: now, Level: x}
	case since < t.Step:
		return t
	}
	past := t.Past
	if n := len(past) - trendSteps; n >= 0 {
		t.judge(past[n], x)
		past = past[n+1:]
	}
	level := trendLevel*x + (1-trendLevel)*(t.Level+trendDamping*t.Slope)
	t.Slope = trendSlope*(level-t.Level) + (1-trendSlope)*trendDamping*t.Slope
	t.Level, t.At = level, now
	t.Past = append(append(make([]Forecast, 0, trendSteps), past...), Forecast{Seen: x, Ahead: t.ahead()})
	return t
}

// judge compares a forecast with the demand x that followed.
func (t *Trend) judge(f Forecast, x float64) {
	t.Judged = min(t.Judged+1, leastJudged)
	weight := max(errorWeight, 1/float64(t.Judged))
	t.Naive += (math.Abs(x-f.Seen) - t.Naive) * weight
	t.Holt += (math.Abs(x-f.Ahead) - t.Holt) * weight
}

// ahead is the demand one start-up after the last sample.
func (t *Trend) ahead() float64 {
	lasting := trendDamping * (1 - math.Pow(trendDamping, trendSteps)) / (1 - trendDamping)
	return max(0, t.Level+t.Slope*lasting)
}

// isProven reports whether the forecasts have been better than the naive ones.
func (t *Trend) isProven() bool { return t.Judged >= leastJudged && t.Holt < trendBetter*t.Naive }

// forecast raises want to what the signal will need when replicas that are
// started now serve. It never lowers want.
func (e *evaluation) forecast(want int32, m measure) int32 {
	if e.p.Startup <= 0 || e.p.Down.Window == 0 {
		e.state.Trend = Trend{}
		return want
	}
	if e.reduced {
		return want // the load of the few that serve is no trend
	}
	before := e.state.Trend
	if !e.isHidden(m) {
		e.state.Trend = before.next(m.up, e.now, e.p.Startup)
	}
	demand := min(e.state.Trend.ahead(), trendMost*m.up)
	if !before.isProven() || demand <= float64(max(want, e.base()))*(1+e.p.upTolerance(e.signal)) {
		return want
	}
	facts := e.facts
	facts.Value, facts.Unit, facts.Wait = demand, "", e.p.Startup
	return e.step(RuleForecast, want, max(want, replicas(demand)), facts)
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

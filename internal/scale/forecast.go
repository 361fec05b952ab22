// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"time"
)

// Trend is a forecast of one signal's demand for when what is started now will
// serve: Holt's linear method, damped. It is kept beside the naive forecast,
// that nothing changes, and is of use only while it has been the better one.
type Trend struct {
	Signal string        `json:"signal"`
	Step   time.Duration `json:"step"` // between samples: an eighth of a start-up
	At     time.Time     `json:"at"`   // of the last sample
	Level  float64       `json:"level"`
	Slope  float64       `json:"slope"` // per step

	// Past are the samples of the last start-up and the forecasts that were made
	// with them, oldest first.
	Past []Forecast `json:"past,omitempty"`
	// Naive and Holt are the mean errors of either forecast, fading, and Judged
	// is how many they are the mean of.
	Naive  float64 `json:"naive"`
	Holt   float64 `json:"holt"`
	Judged int32   `json:"judged"`
}

// Forecast is what was there, and what was thought to be there a start-up later.
type Forecast struct {
	Seen  float64 `json:"seen"`
	Ahead float64 `json:"ahead"`
}

const (
	// trendSteps is how many samples make a start-up.
	trendSteps = 8
	// leastTrendStep keeps samples apart where replicas start within seconds.
	leastTrendStep = 5 * time.Second
	// Holt's weights: of the newest sample, of the newest slope, and how much of
	// a slope lasts to the next step.
	trendLevel, trendSlope, trendDamping = 0.5, 0.2, 0.95
	// trendMemory is the weight of the newest error: of about twenty.
	trendMemory = 0.05
	// trendLeast is how many forecasts must have been judged: three start-ups.
	trendLeast = 3 * trendSteps
	// trendBetter is how much smaller its errors must have been than the naive
	// forecast's.
	trendBetter = 0.7
	// trendMost bounds a forecast, as a multiple of what is there.
	trendMost = 1.5
)

// next is the trend after the demand x was seen at now, where replicas take so
// long to start.
func (t Trend) next(x float64, now time.Time, startup time.Duration) Trend {
	step := max(leastTrendStep, startup/trendSteps)
	since := now.Sub(t.At)
	switch {
	case t.At.IsZero(), since < 0, since > 4*t.Step, t.Step > 2*step, step > 2*t.Step:
		return Trend{Signal: t.Signal, Step: step, At: now, Level: x}
	case since < t.Step:
		return t
	}
	past := t.Past
	if len(past) == trendSteps {
		t.judge(past[0], x)
		past = past[1:]
	}
	level := trendLevel*x + (1-trendLevel)*(t.Level+trendDamping*t.Slope)
	t.Slope = trendSlope*(level-t.Level) + (1-trendSlope)*trendDamping*t.Slope
	t.Level, t.At = level, now
	t.Past = append(append(make([]Forecast, 0, trendSteps), past...), Forecast{Seen: x, Ahead: t.ahead()})
	return t
}

// judge compares what was forecast with what came.
func (t *Trend) judge(f Forecast, x float64) {
	t.Judged = min(t.Judged+1, trendLeast)
	weight := max(trendMemory, 1/float64(t.Judged))
	t.Naive += (math.Abs(x-f.Seen) - t.Naive) * weight
	t.Holt += (math.Abs(x-f.Ahead) - t.Holt) * weight
}

// ahead is the demand a start-up after the last sample.
func (t *Trend) ahead() float64 {
	lasting := trendDamping * (1 - math.Pow(trendDamping, trendSteps)) / (1 - trendDamping)
	return max(0, t.Level+t.Slope*lasting)
}

// proven says whether the forecasts have been better than none.
func (t *Trend) proven() bool { return t.Judged >= trendLeast && t.Holt < trendBetter*t.Naive }

// ahead raises what signal i wants to what it will want when replicas that are
// started now serve. It never lowers.
func (e *engine) ahead(i int, want int32, m measure, facts Facts, s *State) int32 {
	sig := &e.p.Signals[i]
	if e.p.Startup <= 0 || e.p.Down.Window == 0 {
		return want
	}
	before := s.trend(sig.Name)
	t := before
	if !e.hidden(sig, m, facts.Target) {
		t = before.next(m.up, e.now, e.p.Startup)
	}
	e.trends = append(e.trends, t)
	demand := min(t.ahead(), trendMost*m.up)
	if !before.proven() || demand <= float64(max(want, e.base()))*(1+e.p.Up.Tolerance) {
		return want
	}
	facts.Value, facts.Unit, facts.Wait = demand, "", e.p.Startup
	return e.step(RuleForecast, want, max(want, replicas(demand)), facts)
}

// hidden says whether the signal no longer shows the load: what is seen then
// is no sample of it.
func (e *engine) hidden(sig *Signal, m measure, target float64) bool {
	if sig.Type != AverageValue {
		return false
	}
	return sig.Ceiling > 0 && m.value >= saturation*sig.Ceiling || sig.Law == Batching && m.value > pileUp*target
}

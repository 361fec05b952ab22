// SPDX-License-Identifier: Apache-2.0

package trend

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
	// steps is the number of samples per start-up.
	steps = 8
	// leastStep is the shortest time between samples, for replicas that start
	// within seconds.
	leastStep = 5 * time.Second
	// Holt's weights: of the newest sample, of the newest slope, and the share of a
	// slope that lasts until the next step.
	levelWeight, slopeWeight, damping = 0.5, 0.2, 0.95
	// errorWeight is the weight of the newest error: the mean is over about twenty.
	errorWeight = 0.05
	// leastJudged is how many forecasts must have been judged: three start-ups.
	leastJudged = 3 * steps
	// better bounds the forecast's mean error, as a share of the naive one's.
	better = 0.7
)

// Next is the trend after the demand x was read at now, for replicas that take
// startup to serve.
func (t Trend) Next(x float64, now time.Time, startup time.Duration) Trend {
	step := max(leastStep, startup/steps)
	since := now.Sub(t.At)
	switch {
	case t.At.IsZero(), since < 0, since > 4*t.Step, t.Step > 2*step, step > 2*t.Step:
		return Trend{Step: step, At: now, Level: x}
	case since < t.Step:
		return t
	}
	past := t.Past
	if n := len(past) - steps; n >= 0 {
		t.judge(past[n], x)
		past = past[n+1:]
	}
	level := levelWeight*x + (1-levelWeight)*(t.Level+damping*t.Slope)
	t.Slope = slopeWeight*(level-t.Level) + (1-slopeWeight)*damping*t.Slope
	t.Level, t.At = level, now
	t.Past = append(append(make([]Forecast, 0, steps), past...), Forecast{Seen: x, Ahead: t.Ahead()})
	return t
}

// judge compares a forecast with the demand x that followed.
func (t *Trend) judge(f Forecast, x float64) {
	t.Judged = min(t.Judged+1, leastJudged)
	weight := max(errorWeight, 1/float64(t.Judged))
	t.Naive += (math.Abs(x-f.Seen) - t.Naive) * weight
	t.Holt += (math.Abs(x-f.Ahead) - t.Holt) * weight
}

// Ahead is the demand one start-up after the last sample.
func (t *Trend) Ahead() float64 {
	lasting := damping * (1 - math.Pow(damping, steps)) / (1 - damping)
	return max(0, t.Level+t.Slope*lasting)
}

// IsProven reports whether the forecasts have been better than the naive ones.
func (t *Trend) IsProven() bool { return t.Judged >= leastJudged && t.Holt < better*t.Naive }

// Finite returns a demand for a report: at most Most, and 0 for NaN.
func Finite(x float64) float64 {
	if math.IsNaN(x) {
		return 0
	}
	return min(x, Most)
}

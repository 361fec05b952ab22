// SPDX-License-Identifier: Apache-2.0

// Package latency learns how a latency of an inference server follows its requests in flight.
package latency

import (
	"math"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/trend"
)

// Curve is how a latency of an inference server follows its requests in flight:
// the sums of a line that is fitted by least squares. All sequences in flight
// advance together, one token per iteration. An iteration takes longer the more
// sequences there are, and the more prompts are processed beside them, which
// are in proportion. Two numbers therefore describe the line: the latency of an
// idle server, and the number of requests at which it doubles.
//
// The time to the first token has a line of its own: prompts wait longer the
// more of the server's time is taken, as the number of requests is.
//
// Readings scatter in proportion to the latency. Each is weighted by one over
// the latency that the line expects, so that high readings do not tilt it.
type Curve struct {
	N      float64 `json:"n"`      // replica-seconds, or requests, with older ones weighing less
	Weight float64 `json:"weight"` // sum of the weights; the sums below are weighted
	X      float64 `json:"x"`      // of the requests in flight
	Y      float64 `json:"y"`      // of the latency, in seconds
	XX     float64 `json:"xx"`
	XY     float64 `json:"xy"`
	YY     float64 `json:"yy"`
}

const (
	// curveMemory is the time constant with which readings lose weight: prompts and
	// answers grow longer and shorter over a day.
	curveMemory = 45 * time.Minute
	// leastFitted is how many replica-seconds, or requests, a line must rest on.
	leastFitted = 60
	// curveReach is how far beyond the observed numbers of requests (their mean and
	// two standard deviations) the line is used, as a multiple.
	curveReach = 1.5
	// Spread is how many standard deviations of the latency lie between its value at
	// the target and the limit: the limit is for nearly all requests, and both their
	// number and the servers vary.
	Spread = 1.1
)

// Fitter adds readings to a curve, with weights from the line before them.
type Fitter struct {
	Curve
	line Line
	fits bool
}

// Faded is a fitter that starts with the curve, dt after its last readings.
func (c *Curve) Faded(dt time.Duration) Fitter {
	f := Fitter{Curve: *c}
	keep := 1 - trend.Weight(max(0, dt), curveMemory)
	f.N, f.Weight, f.X, f.Y = f.N*keep, f.Weight*keep, f.X*keep, f.Y*keep
	f.XX, f.XY, f.YY = f.XX*keep, f.XY*keep, f.YY*keep
	f.line, f.fits = f.Fit()
	return f
}

// Add adds one replica's reading, which stands for n seconds or requests.
func (f *Fitter) Add(batch, latency, n float64) {
	expected := latency
	if f.fits {
		expected = f.line.at(batch)
	} else if f.Weight > 0 {
		expected = f.Y / f.Weight
	}
	w := n / expected
	f.N += n
	f.Weight += w
	f.X += w * batch
	f.Y += w * latency
	f.XX += w * batch * batch
	f.XY += w * batch * latency
	f.YY += w * latency * latency
}

// Line is a latency over the requests in flight.
type Line struct {
	Base      float64 // seconds on an idle server
	Double    float64 // requests in flight at which the latency is twice the base
	Deviation float64 // standard deviation of readings from the line, relative
}

// Fit is the line through the readings. ok is false if there are too few, or if
// the latency does not rise.
func (c *Curve) Fit() (l Line, ok bool) {
	if c.N < leastFitted {
		return Line{}, false
	}
	spread := c.Weight*c.XX - c.X*c.X
	if !(spread > 1e-6*c.Weight*c.XX) {
		return Line{}, false
	}
	slope := (c.Weight*c.XY - c.X*c.Y) / spread
	l.Base = (c.Y - slope*c.X) / c.Weight
	l.Double = l.Base / slope
	mean := c.Y / c.Weight
	unexplained := c.YY/c.Weight - mean*mean - slope*slope*spread/(c.Weight*c.Weight)
	l.Deviation = math.Sqrt(max(0, unexplained)) / mean
	return l, slope > 0 && l.Base > 0 && !math.IsInf(l.Double, 0) && !math.IsInf(l.Deviation, 0)
}

// at is the latency with this many requests in flight.
func (l *Line) at(batch float64) float64 { return l.Base * (1 + batch/l.Double) }

// High is a latency that hardly any request exceeds where replicas have this
// many in flight on average. The number varies, and by more than that of
// independent requests, because requests stay longer the more there are (a
// negative binomial number). The readings vary about the line.
func (l *Line) High(batch float64) float64 {
	latency := l.at(batch)
	slope, deviation := l.Base/l.Double, l.Deviation*latency
	return latency + Spread*math.Sqrt(slope*slope*batch*(1+batch/l.Double)+deviation*deviation)
}

// Most is the number of requests in flight at which hardly any request exceeds
// the limit. It is not known without a limit, or if even idle replicas exceed it
// at times: then more replicas do not help.
func (l *Line) Most(limit float64) (batch float64, known bool) {
	if l.High(0) >= limit {
		return 0, false
	}
	low, high := 0.0, l.Double*(limit/l.Base-1)
	for range 20 { // to a millionth
		if mid := (low + high) / 2; l.High(mid) <= limit {
			low = mid
		} else {
			high = mid
		}
	}
	return low, true
}

// Most is that of the line, with the latency of idle replicas. If the latency
// has not depended on the requests in flight so far, any number keeps the limit.
func (c *Curve) Most(limit float64) (batch, idle float64, known bool) {
	if l, ok := c.Fit(); ok {
		batch, known = l.Most(limit)
		return batch, l.High(0), known
	}
	if c.N < leastFitted {
		return 0, 0, false
	}
	mean := c.Y / c.Weight
	idle = mean + Spread*math.Sqrt(max(0, c.YY/c.Weight-mean*mean))
	return math.Inf(1), idle, idle < limit
}

// Reach is the largest number of requests in flight for which a line is used.
func (c *Curve) Reach() float64 {
	if !(c.Weight > 0) {
		return 0
	}
	mean := c.X / c.Weight
	return curveReach * (mean + 2*math.Sqrt(max(0, c.XX/c.Weight-mean*mean)))
}

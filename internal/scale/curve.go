// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"time"
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
	// spread is how many standard deviations of the latency lie between its value at
	// the target and the limit: the limit is for nearly all requests, and both their
	// number and the servers vary.
	spread = 1.1
)

// fitter adds readings to a curve, with weights from the line before them.
type fitter struct {
	Curve
	line line
	fits bool
}

// faded is a fitter that starts with the curve, dt after its last readings.
func (c *Curve) faded(dt time.Duration) fitter {
	f := fitter{Curve: *c}
	keep := 1 - newWeight(max(0, dt), curveMemory)
	f.N, f.Weight, f.X, f.Y = f.N*keep, f.Weight*keep, f.X*keep, f.Y*keep
	f.XX, f.XY, f.YY = f.XX*keep, f.XY*keep, f.YY*keep
	f.line, f.fits = f.fit()
	return f
}

// add adds one replica's reading, which stands for n seconds or requests.
func (f *fitter) add(batch, latency, n float64) {
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

// line is a latency over the requests in flight.
type line struct {
	base      float64 // seconds on an idle server
	double    float64 // requests in flight at which the latency is twice the base
	deviation float64 // standard deviation of readings from the line, relative
}

// fit is the line through the readings. ok is false if there are too few, or if
// the latency does not rise.
func (c *Curve) fit() (l line, ok bool) {
	if c.N < leastFitted {
		return line{}, false
	}
	spread := c.Weight*c.XX - c.X*c.X
	if !(spread > 1e-6*c.Weight*c.XX) {
		return line{}, false
	}
	slope := (c.Weight*c.XY - c.X*c.Y) / spread
	l.base = (c.Y - slope*c.X) / c.Weight
	l.double = l.base / slope
	mean := c.Y / c.Weight
	unexplained := c.YY/c.Weight - mean*mean - slope*slope*spread/(c.Weight*c.Weight)
	l.deviation = math.Sqrt(max(0, unexplained)) / mean
	return l, slope > 0 && l.base > 0 && !math.IsInf(l.double, 0) && !math.IsInf(l.deviation, 0)
}

// at is the latency with this many requests in flight.
func (l *line) at(batch float64) float64 { return l.base * (1 + batch/l.double) }

// high is a latency that hardly any request exceeds where replicas have this
// many in flight on average. The number varies, and by more than that of
// independent requests, because requests stay longer the more there are (a
// negative binomial number). The readings vary about the line.
func (l *line) high(batch float64) float64 {
	latency := l.at(batch)
	slope, deviation := l.base/l.double, l.deviation*latency
	return latency + spread*math.Sqrt(slope*slope*batch*(1+batch/l.double)+deviation*deviation)
}

// most is the number of requests in flight at which hardly any request exceeds
// the limit. It is not known without a limit, or if even idle replicas exceed it
// at times: then more replicas do not help.
func (l *line) most(limit float64) (batch float64, known bool) {
	if l.high(0) >= limit {
		return 0, false
	}
	low, high := 0.0, l.double*(limit/l.base-1)
	for range 20 { // to a millionth
		if mid := (low + high) / 2; l.high(mid) <= limit {
			low = mid
		} else {
			high = mid
		}
	}
	return low, true
}

// most is that of the line, with the latency of idle replicas. If the latency
// has not depended on the requests in flight so far, any number keeps the limit.
func (c *Curve) most(limit float64) (batch, idle float64, known bool) {
	if l, ok := c.fit(); ok {
		batch, known = l.most(limit)
		return batch, l.high(0), known
	}
	if c.N < leastFitted {
		return 0, 0, false
	}
	mean := c.Y / c.Weight
	idle = mean + spread*math.Sqrt(max(0, c.YY/c.Weight-mean*mean))
	return math.Inf(1), idle, idle < limit
}

// reach is the largest number of requests in flight for which a line is used.
func (c *Curve) reach() float64 {
	if !(c.Weight > 0) {
		return 0
	}
	mean := c.X / c.Weight
	return curveReach * (mean + 2*math.Sqrt(max(0, c.XX/c.Weight-mean*mean)))
}

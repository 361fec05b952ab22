// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"time"
)

// Curve is what has been learned of how a batch slows an inference server down:
// sums for a line through the time between a request's tokens over the requests
// in the batch. All sequences of a batch advance together, one token an
// iteration, and an iteration takes longer the more there are of them and of
// the prompts that are worked off beside them, which come in proportion. So the
// line's two numbers are enough: base, the time on an idle server, and the
// batch at which it doubles.
//
// Another goes through the time to the first token: prompts wait for one another
// the longer the more of a server's time is taken, as the batch does.
//
// Readings scatter in proportion to the latency, so they are weighted by one
// over what the line says of their batch; what is far up must not tilt it.
type Curve struct {
	Signal string  `json:"signal"`
	N      float64 `json:"n"`      // seconds that replicas were watched, or requests that were, fading
	Weight float64 `json:"weight"` // the same by weight, as are the sums
	X      float64 `json:"x"`      // of the batch, in requests
	Y      float64 `json:"y"`      // of the latency, in seconds
	XX     float64 `json:"xx"`
	XY     float64 `json:"xy"`
	YY     float64 `json:"yy"`
}

const (
	// curveSpan is the time constant with which readings fade: prompts and
	// answers grow longer and shorter over a day.
	curveSpan = 45 * time.Minute
	// curveLeast is how many seconds of replicas, or requests, a line must rest on.
	curveLeast = 60
	// curveStep is the most that one reading of a replica may stand for, in seconds.
	curveStep = 5
	// curveReach is how far beyond the batches that were seen (two standard
	// deviations above their mean) the line is believed.
	curveReach = 1.5
	// spread is how many standard deviations of the latency lie between what it is
	// at the target and the limit: batches vary, servers do, and the limit is for
	// nearly all requests.
	spread = 1.1
	// nearIdle is the share of a limit that idle replicas may take before the target
	// that was given counts beside the one that was learned.
	nearIdle = 0.9
	// targetRange bounds what is learned: between the target's eighth and eight times the target.
	targetRange = 8.0
	// batchLoad is the share of the load at which a batch would grow without end
	// that a replica is taken to carry at its target, where no curve is known. For
	// models of 8 and 70 billion parameters within common limits it is 0.3 to 0.5.
	batchLoad = 0.4
	// pileUp is how many times its target a replica may have before the rest is
	// taken for a pile, which is not there because so many come but because they
	// have been coming for some time; pileShare is what it weighs in comparison.
	pileUp    = 2.0
	pileShare = 0.03
	// firstLag is how long after an overload times to the first token tell of it: they
	// are of those who waited, and rates are means over the last quarter of a minute.
	firstLag = 30 * time.Second
	// Readings beyond these are garbage: no server has a million requests in its
	// batch, takes an hour for a token or makes one in ten microseconds.
	mostBatch, leastLatency, mostLatency = 1e6, 1e-5, 3600
)

// learner takes readings into a curve, weighted by what it said before them.
type learner struct {
	Curve
	line line
	fits bool
}

// relearn begins with what is still known of a signal.
func relearn(curves []Curve, signal string, since time.Duration) learner {
	l := learner{Curve: Curve{Signal: signal}}
	if old := curveOf(curves, signal); old != nil {
		l.Curve = *old
		l.fade(since)
	}
	l.line, l.fits = l.fit()
	return l
}

// add takes in one replica's reading, which stood for n seconds or requests.
func (c *learner) add(batch, latency, n float64) {
	expected := latency
	if c.fits {
		expected = c.line.at(batch)
	} else if c.Weight > 0 {
		expected = c.Y / c.Weight
	}
	w := n / expected
	c.N += n
	c.Weight += w
	c.X += w * batch
	c.Y += w * latency
	c.XX += w * batch * batch
	c.XY += w * batch * latency
	c.YY += w * latency * latency
}

// fade makes all readings count for less as time goes by.
func (c *Curve) fade(dt time.Duration) {
	keep := 1 - passed(max(0, dt), curveSpan)
	c.N, c.Weight, c.X, c.Y = c.N*keep, c.Weight*keep, c.X*keep, c.Y*keep
	c.XX, c.XY, c.YY = c.XX*keep, c.XY*keep, c.YY*keep
}

// line is how the latency follows the batch.
type line struct {
	base   float64 // seconds on an idle server
	double float64 // batch at which it is twice that
	off    float64 // standard deviation of readings from the line, relative
}

// fit is the line through what was seen.
func (c *Curve) fit() (l line, ok bool) {
	if c == nil || c.N < curveLeast {
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
	l.off = math.Sqrt(max(0, unexplained)) / mean
	return l, slope > 0 && l.base > 0 && !math.IsInf(l.double, 0) && !math.IsInf(l.off, 0)
}

// at is the latency at a batch.
func (l *line) at(batch float64) float64 { return l.base * (1 + batch/l.double) }

// high is a latency that hardly any request exceeds where replicas have so many
// on the mean. Their number varies, of requests that come at random by more than
// as many would on their own, because more of them stay longer (a negative
// binomial number), and so do the readings about the line.
func (l *line) high(batch float64) float64 {
	latency := l.at(batch)
	slope, off := l.base/l.double, l.off*latency
	return latency + spread*math.Sqrt(slope*slope*batch*(1+batch/l.double)+off*off)
}

// most is the batch at which hardly any request exceeds the limit. It is not
// known without a limit, nor for one that even idle replicas exceed at times: more
// of them would not help.
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

// most is the line's, with what idle replicas take. While no batch that was seen
// made a difference, any will do.
func (c *Curve) most(limit float64) (batch, idle float64, known bool) {
	if l, ok := c.fit(); ok {
		batch, known = l.most(limit)
		return batch, l.high(0), known
	}
	if c == nil || c.N < curveLeast {
		return 0, 0, false
	}
	mean := c.Y / c.Weight
	idle = mean + spread*math.Sqrt(max(0, c.YY/c.Weight-mean*mean))
	return math.Inf(1), idle, idle < limit
}

// reach is the largest batch for which a line is believed.
func (c *Curve) reach() float64 {
	if c == nil || !(c.Weight > 0) {
		return 0
	}
	mean := c.X / c.Weight
	return curveReach * (mean + 2*math.Sqrt(max(0, c.XX/c.Weight-mean*mean)))
}

// capacity is what a replica takes of a signal.
type capacity struct {
	target  float64 // of the signal, per replica
	double  float64 // batch at which tokens take twice as long; 0: the signal is linear
	learned bool    // target is
}

// load is the share of its capacity that a replica carries at the value x. A
// batch b in which everything takes 1 + b/double times as long is b/(b+double)
// of the load at which it would grow without end.
func (c *capacity) load(x float64) float64 {
	if c.double <= 0 {
		return x / c.target
	}
	full := pileUp * c.target
	piled := max(0, x-full)
	x -= piled
	return x/(x+c.double)*(c.target+c.double)/c.target + pileShare*piled/c.target
}

// capacityOf is what a replica takes of a signal, by its target and by what was
// learned.
func capacityOf(sig *Signal, s *State) capacity {
	if sig.Law != Batching {
		return capacity{target: sig.Target}
	}
	takes := capacity{target: sig.Target, double: sig.Target * (1 - batchLoad) / batchLoad}
	if !sig.Learned() {
		return takes
	}
	curve, first := curveOf(s.Curves, sig.Name), curveOf(s.Firsts, sig.Name)
	target := math.Inf(1)
	if l, ok := curve.fit(); ok {
		takes.double = l.double
		if most, ok := l.most(sig.Limit); ok {
			target, takes.learned = curve.believed(most, l.high(0)/sig.Limit, sig.Target), true
		}
	}
	if most, idle, ok := first.most(sig.FirstLimit); ok {
		target, takes.learned = min(target, curve.believed(most, idle/sig.FirstLimit, sig.Target)), true
	}
	if takes.learned {
		takes.target = min(max(target, sig.Target/targetRange), sig.Target*targetRange)
	}
	return takes
}

// believed is the target of a line that says most, where idle replicas take the
// share idle of the limit: no more than what was seen reaches. The closer they
// come to the limit, the less there is to win by fewer requests, and the more the
// given target counts: beyond it, it is all there is.
func (c *Curve) believed(most, idle, given float64) float64 {
	most = min(most, max(c.reach(), given/2))
	if near := (idle - nearIdle) / (1 - nearIdle); near > 0 && most < given {
		most += (given - most) * near
	}
	return most
}

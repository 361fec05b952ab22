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
type Curve struct {
	Signal string  `json:"signal"`
	N      float64 `json:"n"` // seconds that replicas were watched, fading
	X      float64 `json:"x"` // requests
	Y      float64 `json:"y"` // seconds
	XX     float64 `json:"xx"`
	XY     float64 `json:"xy"`
}

const (
	// curveSpan is the time constant with which readings fade: prompts and
	// answers grow longer and shorter over a day.
	curveSpan = 45 * time.Minute
	// curveLeast is how many seconds of replicas a line must rest on.
	curveLeast = 60
	// curveStep is the most that one reading of a replica may stand for, in seconds.
	curveStep = 5
	// curveReach is how far beyond the batches that were seen (two standard
	// deviations above their mean) the line is believed.
	curveReach = 1.5
	// batchSpread is how many standard deviations of a Poisson number the batch at
	// the limit lies above the target: batches vary, and the limit is for all.
	batchSpread = 2.0
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
	// Readings beyond these are garbage: no server has a million requests in its
	// batch or takes an hour for a token.
	mostBatch, mostLatency = 1e6, 3600
)

// add takes in one replica's reading, which stood for so many seconds.
func (c *Curve) add(batch, latency, seconds float64) {
	c.N += seconds
	c.X += seconds * batch
	c.Y += seconds * latency
	c.XX += seconds * batch * batch
	c.XY += seconds * batch * latency
}

// fade makes all readings count for less as time goes by.
func (c *Curve) fade(dt time.Duration) {
	keep := 1 - passed(max(0, dt), curveSpan)
	c.N, c.X, c.Y, c.XX, c.XY = c.N*keep, c.X*keep, c.Y*keep, c.XX*keep, c.XY*keep
}

// fit is the line: base is the seconds between tokens on an idle server, double
// the batch at which they are twice that.
func (c *Curve) fit() (base, double float64, ok bool) {
	spread := c.N*c.XX - c.X*c.X
	if c.N < curveLeast || !(spread > 1e-6*c.N*c.XX) {
		return 0, 0, false
	}
	slope := (c.N*c.XY - c.X*c.Y) / spread
	base = (c.Y - slope*c.X) / c.N
	double = base / slope
	return base, double, slope > 0 && base > 0 && !math.IsInf(double, 0)
}

// reach is the largest batch for which the line is believed.
func (c *Curve) reach() float64 {
	mean := c.X / c.N
	return curveReach * (mean + 2*math.Sqrt(max(0, c.XX/c.N-mean*mean)))
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
func capacityOf(sig *Signal, c *Curve) capacity {
	if sig.Law != Batching {
		return capacity{target: sig.Target}
	}
	given := capacity{target: sig.Target, double: sig.Target * (1 - batchLoad) / batchLoad}
	if sig.Limit <= 0 || c == nil {
		return given
	}
	base, double, ok := c.fit()
	if !ok {
		return given
	}
	most := double * (sig.Limit/base - 1) // the batch at the limit
	if !(most > 0) {
		return given // even an idle replica is over it: more of them would not help
	}
	// target + batchSpread·√target = most
	root := (math.Sqrt(batchSpread*batchSpread+4*most) - batchSpread) / 2
	target := min(root*root, max(c.reach(), sig.Target/2))
	target = min(max(target, sig.Target/targetRange), sig.Target*targetRange)
	return capacity{target: target, double: double, learned: true}
}

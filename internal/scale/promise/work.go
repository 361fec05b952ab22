// SPDX-License-Identifier: Apache-2.0

package promise

import "math"

// Work is what is learned about the speed of a replica. All sequences on an inference
// server decode together, one token each per iteration. An iteration takes longer the
// more sequences there are, and the more prompt tokens are processed beside them. So
// the iterations per second, which are one over the time between tokens, fall in
// proportion to the tokens per second:
//
//	1 ÷ (time between tokens) = (1 − PerPrompt × prompt tokens/s − PerOutput × output tokens/s) ÷ Idle
//
// The fields are the sums of a least-squares fit of this plane to the means of steps.
// Older steps weigh less.
type Work struct {
	Weight float64 `json:"weight"` // replica-seconds; they weigh the other sums
	P      float64 `json:"p"`      // of prompt tokens/s per replica
	O      float64 `json:"o"`      // of output tokens/s per replica
	Y      float64 `json:"y"`      // of iterations/s
	PP     float64 `json:"pp"`
	PO     float64 `json:"po"`
	OO     float64 `json:"oo"`
	PY     float64 `json:"py"`
	OY     float64 `json:"oy"`
}

const (
	// workMemory is the time constant of the fit, in seconds. Prompts that are found in a
	// cache cost less, and their share changes with the traffic.
	workMemory = 2 * 3600
	// leastWork is how many replica-seconds the fit needs: less than one replica has in the
	// first step of a new workload.
	leastWork = 4
	// priorPrompt and priorOutput are what a token takes where the readings do not tell, as a
	// share of an idle iteration. Models of 8 and 70 billion parameters are at 0.004 to
	// 0.007 and 0.008 to 0.03 (the fits in replay/service). With these in seconds, the fit ran
	// away: small models are ten times faster.
	priorPrompt, priorOutput = 0.005, 0.015
	// priorSpread is the standard deviation of the true costs from these, and noise that
	// of a step's mean from the plane, both relative. Errors of neighbouring steps are
	// alike, so that a replica-second counts as independent of these.
	priorSpread, noise, independent = 0.7, 0.04, 1.0 / 1000
	// outlier is the relative distance from the plane beyond which a step weighs less:
	// prompts that take seconds stop a few replicas, not all of them.
	outlier = 0.08
	// overload is the multiple of the mean time between tokens from which a step is left
	// out: the plane does not hold there.
	overload = 2.5
)

// Cost is what tokens take of a replica, in seconds.
type Cost struct {
	Idle      float64 // between the tokens of an idle replica
	PerPrompt float64 // of a replica's time per prompt token
	PerOutput float64 // of a replica's time per output token
}

// Busy is a load in busy replicas.
func (c *Cost) Busy(l Load) float64 {
	return c.PerPrompt*float64(l.Prompt) + c.PerOutput*float64(l.Output)
}

// next is the fit after a step: the tokens/s per replica, the mean seconds between
// tokens, the number of replicas, and the step's length in seconds.
func (w Work) next(l Load, tokenSeconds, replicas, seconds float64) Work {
	n, y := replicas*seconds, 1/tokenSeconds
	if c, ok := w.Cost(); ok {
		switch off := math.Abs(y*c.Idle/max(0.1, 1-c.Busy(l)) - 1); {
		case tokenSeconds*w.Y > overload*w.Weight:
			n = 0
		case off > outlier:
			n *= outlier / off
		}
	}
	keep := math.Exp(-seconds / workMemory)
	add := func(sum *float64, x float64) { *sum = *sum*keep + n*x }
	p, o := float64(l.Prompt), float64(l.Output)
	add(&w.Weight, 1)
	add(&w.P, p)
	add(&w.O, o)
	add(&w.Y, y)
	add(&w.PP, p*p)
	add(&w.PO, p*o)
	add(&w.OO, o*o)
	add(&w.PY, p*y)
	add(&w.OY, o*y)
	return w
}

// Cost returns the fitted cost. ok is false while there are too few readings.
func (w *Work) Cost() (c Cost, ok bool) {
	n := w.Weight
	if !(n >= leastWork) {
		return Cost{}, false
	}
	p, o, y := w.P/n, w.O/n, w.Y/n
	pp, po, oo := w.PP/n-p*p, w.PO/n-p*o, w.OO/n-o*o
	py, oy := w.PY/n-p*y, w.OY/n-o*y
	ridge := noise * y / priorSpread
	ridge *= ridge / max(1, n*independent)
	const ridgeP, ridgeO = 1 / (priorPrompt * priorPrompt), 1 / (priorOutput * priorOutput)
	b, k := solve(pp+ridge*ridgeP, po, oo+ridge*ridgeO, ridge/priorPrompt-py, ridge/priorOutput-oy)
	perIdle := y + b*p + k*o
	c = Cost{Idle: 1 / perIdle, PerPrompt: b / perIdle, PerOutput: k / perIdle}
	return c, c.PerPrompt+c.PerOutput > 0 && c.Idle > 0 && !math.IsInf(c.Idle, 0)
}

// solve returns the x, y ≥ 0 with the least a·x² + 2b·x·y + d·y² − 2r·x − 2s·y, where the
// form is positive definite.
func solve(a, b, d, r, s float64) (x, y float64) {
	det := a*d - b*b
	if x, y = (r*d-s*b)/det, (a*s-b*r)/det; det > 0 && x >= 0 && y >= 0 {
		return x, y
	}
	x, y = max(0, r/a), max(0, s/d)
	if r*x >= s*y {
		return x, 0
	}
	return 0, y
}

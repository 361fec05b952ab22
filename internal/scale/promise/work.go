// SPDX-License-Identifier: Apache-2.0

package promise

import "math"

// Work is what is learned about the speed of a replica. All sequences on an inference
// server decode together, one token each per iteration. An iteration takes longer the
// more sequences there are, the more of the KV cache they hold, which it reads, and the more
// prompt tokens are processed beside them. So the iterations per second, which are one over
// the time between tokens, fall in proportion to what is done per second:
//
//	1 ÷ (time between tokens) = (1 − PerPrompt × prompt tokens/s − PerOutput × output tokens/s − PerCache × full caches read/s) ÷ Idle
//
// The fields are the sums of a least-squares fit of this plane to the means of steps.
// Older steps weigh less.
type Work struct {
	Weight float64 `json:"weight"` // replica-seconds; they weigh the other sums
	P      float64 `json:"p"`      // of prompt tokens/s per replica
	O      float64 `json:"o"`      // of output tokens/s per replica
	C      float64 `json:"c"`      // of full KV caches read/s per replica
	Y      float64 `json:"y"`      // of iterations/s
	PP     float64 `json:"pp"`
	PO     float64 `json:"po"`
	OO     float64 `json:"oo"`
	PC     float64 `json:"pc"`
	OC     float64 `json:"oc"`
	CC     float64 `json:"cc"`
	PY     float64 `json:"py"`
	OY     float64 `json:"oy"`
	CY     float64 `json:"cy"`
}

const (
	// workMemory is the time constant of the fit, in seconds. Prompts that are found in a
	// cache cost less, and their share changes with the traffic.
	workMemory = 2 * 3600
	// leastWork is how many replica-seconds the fit needs: less than one replica has in the
	// first step of a new workload.
	leastWork = 4
	// priorPrompt, priorOutput and priorCache are what a token and a full cache take where the readings do not tell, as
	// a share of an idle iteration. Models of 8 and 70 billion parameters are at 0.004 to 0.007 and 0.008 to 0.03 (the
	// fits in replay/service). With these in seconds, the fit ran away: small models are ten times faster. An idle
	// iteration reads the weights, and the cache is what they leave of the memory: 1 time as much with 70 billion
	// parameters of a byte on 2 × 80 GB, 3.5 times with 8 billion of two on 80 GB. With 0.5 instead of 2, one of 24
	// cells less was kept, for 1 % more GPU-hours.
	priorPrompt, priorOutput, priorCache = 0.005, 0.015, 2
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
	PerCache  float64 // of a replica's time per full KV cache that is read

	CachePerOutput float64 // full KV caches that are usually read per output token; 0: not known
	Knee           float64 // busy share at which replicas are full by their limits; 0: not known
}

// Busy is a load in busy replicas. KV caches fill before replicas are busy where requests are
// long: replicas whose caches are full count as busy up to the knee, as requests wait then.
func (c *Cost) Busy(l Load) float64 { return max(c.busy(l)) }

// busy is a load in replicas that are busy by their time, and in those that are by their caches.
func (c *Cost) busy(l Load) (time, caches float64) {
	cache := float64(l.Cache)
	if cache <= 0 {
		cache = c.CachePerOutput * float64(l.Output)
	}
	time = c.PerPrompt*float64(l.Prompt) + c.PerOutput*float64(l.Output) + c.PerCache*cache
	// Requests hold Idle × cache caches on replicas that do nothing else, and 1 ÷ (1 − busy share)
	// times as many on busy ones: the caches of time + Idle × cache replicas are just full.
	return time, c.Knee * (time + c.Idle*cache)
}

// next is the fit after a step: the load per replica, the mean seconds between
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
	p, o, h := float64(l.Prompt), float64(l.Output), float64(l.Cache)
	if h > 0 && o > 0 && w.C == 0 { // the caches of before are not known: the usual ones of the output
		k := h / o
		w.C, w.PC, w.OC, w.CC, w.CY = k*w.O, k*w.PO, k*w.OO, k*k*w.OO, k*w.OY
	}
	keep := math.Exp(-seconds / workMemory)
	sums := [...]*float64{&w.Weight, &w.P, &w.O, &w.C, &w.Y, &w.PP, &w.PO, &w.PC, &w.OO, &w.OC, &w.CC, &w.PY, &w.OY, &w.CY}
	for i, x := range [len(sums)]float64{1, p, o, h, y, p * p, p * o, p * h, o * o, o * h, h * h, p * y, o * y, h * y} {
		*sums[i] = *sums[i]*keep + n*x
	}
	return w
}

// Cost returns the fitted cost. ok is false while there are too few readings.
func (w *Work) Cost() (c Cost, ok bool) {
	n := w.Weight
	if !(n >= leastWork) {
		return Cost{}, false
	}
	p, o, h, y := w.P/n, w.O/n, w.C/n, w.Y/n
	pp, po, pc, oo, oc, cc := w.PP/n-p*p, w.PO/n-p*o, w.PC/n-p*h, w.OO/n-o*o, w.OC/n-o*h, w.CC/n-h*h
	a := [3]vector{{pp, po, pc}, {po, oo, oc}, {pc, oc, cc}}
	r := vector{p*y - w.PY/n, o*y - w.OY/n, h*y - w.CY/n}
	ridge := noise * y / priorSpread
	ridge *= ridge / max(1, n*independent)
	for i, prior := range [...]float64{priorPrompt, priorOutput, priorCache} {
		a[i][i] += ridge / (prior * prior)
		r[i] += ridge / prior
	}
	x := solve(a, r)
	perIdle := y + x[0]*p + x[1]*o + x[2]*h
	c = Cost{Idle: 1 / perIdle, PerPrompt: x[0] / perIdle, PerOutput: x[1] / perIdle}
	if h > 0 && o > 0 {
		c.PerCache, c.CachePerOutput = x[2]/perIdle, h/o
	}
	return c, c.PerPrompt+c.PerOutput+c.PerCache > 0 && c.Idle > 0 && !math.IsInf(c.Idle, 0)
}

type vector [3]float64

// solve returns the x ≥ 0 with the least x·a·x − 2r·x, where a is positive definite: the best of
// those that are least with some of its elements at 0.
func solve(a [3]vector, r vector) (best vector) {
	least := 0.0
	for free := 1; free < 1<<len(r); free++ {
		x := solveSome(a, r, free)
		value, ok := 0.0, true
		for i := range x {
			value -= r[i] * x[i]
			ok = ok && x[i] >= 0
		}
		if ok && value < least {
			least, best = value, x
		}
	}
	return best
}

// solveSome solves a·x = r by elimination for the elements whose bits are set in free. The others
// are 0.
func solveSome(a [3]vector, r vector, free int) (x vector) {
	isFree := func(i int) bool { return free>>i&1 == 1 }
	for i := range r {
		for j := i + 1; j < len(r) && isFree(i); j++ {
			f := a[j][i] / a[i][i]
			for k := i; k < len(r); k++ {
				a[j][k] -= f * a[i][k]
			}
			r[j] -= f * r[i]
		}
	}
	for i := len(r) - 1; i >= 0; i-- {
		if !isFree(i) {
			continue
		}
		x[i] = r[i]
		for j := i + 1; j < len(r); j++ {
			x[i] -= a[i][j] * x[j]
		}
		x[i] /= a[i][i]
	}
	return x
}

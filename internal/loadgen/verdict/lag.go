// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// followsSteps reports whether the value changes because a load that stands still in between does: then the time between two
// changes is that of the load.
func (c *comparison) followsSteps(changes []float64) bool {
	steps, every := c.curve.steps(c.tolerance * c.scale)
	return steps > 0 && 5*len(changes) <= 6*steps+5 && c.interval <= 1.2*every+c.poll
}

// usualIntervals are intervals of sources, in seconds.
var usualIntervals = []float64{60, 30, 20, 15, 10, 5, 2, 1}

// usualInterval returns the interval of a source whose values change as seldom as the load: the longest usual one, up to the
// shortest time between two changes, that all changes are multiples of apart.
func (c *comparison) usualInterval(changes []float64) float64 {
	for _, interval := range usualIntervals {
		if interval <= c.poll {
			break
		}
		if interval <= c.interval+c.poll && isLattice(changes, interval, c.poll) {
			return interval
		}
	}
	return c.poll
}

// isLattice reports whether times that are known to a poll are multiples of an interval apart. Intervals drift, so that
// times far apart say nothing.
func isLattice(times []float64, interval, poll float64) bool {
	const neighbours, drift = 3, 0.03
	for i, t := range times {
		for n := 1; n <= neighbours && i+n < len(times); n++ {
			apart := times[i+n] - t
			if off := math.Abs(apart - interval*math.Round(apart/interval)); off > 1.1*poll+drift*interval*float64(n) {
				return false
			}
		}
	}
	return true
}

// lagging finds the lag at which the values are right.
func (c *comparison) lagging() (Verdict, bool) {
	if !c.varies() {
		return Verdict{}, false
	}
	var fits []fit
	limit := min(maxLag, 0.4*c.curve.end())
	most := c.spread() / 2
	for lag := leastLag; lag <= limit; lag += 0.5 {
		share, n := c.agree(1, lag, c.tolerance)
		if share < leastShare || n < 3 || 2*n < len(c.samples) {
			continue
		}
		if r, ok := c.residual(lag); ok && r < most {
			fits = append(fits, fit{lag, r})
		}
	}
	return late(fits, most/50)
}

// fit is how far the values are from the load at a lag.
type fit struct{ lag, residual float64 }

// late names the lag that fits. Residuals that differ by less than same are alike.
func late(fits []fit, same float64) (Verdict, bool) {
	if len(fits) == 0 {
		return Verdict{}, false
	}
	least := slices.MinFunc(fits, func(a, b fit) int { return cmp.Compare(a.residual, b.residual) }).residual
	best, found := fits[0], false
	for _, f := range fits { // the first good one and what is better right behind it: a load with a period fits again and again
		near := f.residual <= 2*least+same
		if found && (!near || f.lag > best.lag+2 && f.residual >= best.residual) {
			break
		}
		if near && (!found || f.residual < best.residual) {
			best, found = f, true
		}
	}
	return Verdict{Finding: Lagging, Detail: fmt.Sprintf("by %.1f s", best.lag), Lag: &best.lag}, true
}

// delayed finds the lag of a source whose values are right because the load stands still most of the time.
func (c *comparison) delayed() (Verdict, bool) {
	if steps, _ := c.curve.steps(c.tolerance * c.scale); steps == 0 || !c.varies() {
		return Verdict{}, false
	}
	honest, limit, most := math.Inf(1), 1.5*max(1, c.interval)+latency.Seconds(), c.spread()/4
	var fits []fit
	for lag := -c.curve.step; lag <= min(maxLag, 0.4*c.curve.end()); lag += 0.5 { // a value of a moment may be ahead of its step's mean
		r, ok := c.held(lag)
		switch {
		case ok && lag <= limit:
			if honest = min(honest, r); honest <= most/5 {
				return Verdict{}, false // small differences at the steps alone do not accuse
			}
		case ok && r < most:
			fits = append(fits, fit{lag, r})
		}
	}
	v, ok := late(fits, most/8)
	if !ok {
		return v, false
	}
	r, _ := c.held(*v.Lag)
	return v, honest > 4*r+most/5
}

// held is the mean squared difference of all answers at a lag, also of those that repeat a value.
func (c *comparison) held(lag float64) (float64, bool) {
	const enough = 2000 // answers of a load that takes a day
	sum, n, stride := 0.0, 0, 1+len(c.samples)/enough
	for i := 0; i < len(c.samples); i += stride {
		s := &c.samples[i]
		if mean, ok := c.curve.mean(s.at-lag-c.curve.step, s.at-lag); ok {
			sum += (s.value - mean) * (s.value - mean)
			n++
		}
	}
	return sum / float64(max(1, n)), 2*n*stride >= len(c.samples)
}

// residual is the mean squared difference of new values at a lag, for the better of two lengths of time that a value can be
// the mean of.
func (c *comparison) residual(lag float64) (float64, bool) {
	short, ok := c.residualOf(lag, 1)
	if long, has := c.residualOf(lag, c.interval); has && (!ok || long < short) {
		return long, true
	}
	return short, ok
}

func (c *comparison) residualOf(lag, window float64) (float64, bool) {
	sum, n := 0.0, 0
	for i, s := range c.samples {
		if i > 0 && s.since == c.samples[i-1].since {
			continue // the same value as before
		}
		if mean, ok := c.curve.mean(s.since-lag-window, s.since-lag); ok {
			sum += (s.value - mean) * (s.value - mean)
			n++
		}
	}
	if n == 0 {
		return 0, false
	}
	return sum / float64(n), true
}

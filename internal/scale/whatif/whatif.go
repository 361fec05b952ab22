// SPDX-License-Identifier: Apache-2.0

// Package whatif determines which signal values would change a decision.
package whatif

import (
	"math"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale"
)

// Change is the smallest change of one signal that leads to another decision, while
// everything else stays unchanged.
type Change struct {
	Signal   string
	Unit     string
	Now      float64       // mean per serving replica, or the workload's total
	Value    float64       // the threshold
	Up       bool          // above Value, else below
	Held     time.Duration // how long the value must last; 0: no time
	Replicas int32         // the number that is then decided
}

// Case holds the arguments of a decision.
type Case struct {
	Policy      scale.Policy
	Observation scale.Observation
	State       scale.State
	Now         time.Time
}

// Changes returns, for each readable signal, the values that would raise and lower the
// replicas. Signals that cannot do so alone are left out.
func Changes(c *Case) (out []Change) {
	idle := c.simulate(nil)
	for i := range c.Policy.Signals {
		now, ok := c.currentValue(i)
		if !ok {
			continue
		}
		for _, up := range []bool{true, false} {
			if x, ok := c.findThreshold(i, now, up, idle); ok {
				out = append(out, x)
			}
		}
	}
	return out
}

// outcome is the first other number of replicas of a lasting situation.
type outcome struct {
	replicas int32
	after    time.Duration
	decision scale.Decision // the last one
}

// precision is the relative error of a threshold.
const precision = 1e-3

// findThreshold finds the threshold by bisection between the current value and the most
// extreme one. The engine is monotone: more demand never leads to fewer replicas.
func (c *Case) findThreshold(i int, now float64, up bool, idle outcome) (Change, bool) {
	sig := &c.Policy.Signals[i]
	changes := func(v float64) (outcome, bool) {
		o := c.simulate(map[int]float64{i: v})
		if up {
			return o, o.replicas > max(idle.replicas, c.Observation.Replicas)
		}
		return o, o.replicas < min(idle.replicas, c.Observation.Replicas)
	}
	far := 0.0
	if up {
		far = max(now, sig.Target) * 1000
		if sig.Ceiling > 0 {
			far = max(now, sig.Ceiling)
		}
	}
	best, ok := changes(far)
	if !ok {
		return Change{}, false
	}
	near := now
	for math.Abs(far-near) > precision*max(math.Abs(far), sig.Target) {
		mid := (near + far) / 2
		if o, ok := changes(mid); ok {
			far, best = mid, o
		} else {
			near = mid
		}
	}
	return Change{Signal: sig.Name, Unit: sig.Unit, Now: now, Value: near, Up: up, Held: best.after, Replicas: best.replicas}, true
}

// settleTime is how long a situation is simulated beyond the longest window, because
// signals are averaged and new replicas need time.
const settleTime = 2 * time.Minute

// simulate repeats the situation, with these values of signals, until the engine decides
// on another number of replicas.
func (c *Case) simulate(set map[int]float64) outcome {
	state, cur := c.State, c.Observation.Replicas
	last := settleTime + max(c.Policy.DownWindow(), c.Policy.Up.Window, c.Policy.Startup)
	for _, r := range append(c.Policy.Up.Policies, c.Policy.Down.Policies...) {
		last = max(last, settleTime+r.Period)
	}
	var d scale.Decision
	for t := time.Duration(0); t <= last; t += time.Second {
		now := c.Now.Add(t)
		d, state = scale.Decide(c.Policy, c.observationAt(set, now, t), state, now)
		if d.Replicas != cur {
			return outcome{d.Replicas, t, d}
		}
	}
	return outcome{cur, last, d}
}

// observationAt returns the observation at a later time, with new readings of the same
// values.
func (c *Case) observationAt(set map[int]float64, now time.Time, later time.Duration) scale.Observation {
	o := scale.Observation{Replicas: c.Observation.Replicas}
	fresh := func(in []scale.Reading) []scale.Reading {
		out := append([]scale.Reading(nil), in...)
		for k := range out {
			out[k].At = out[k].At.Add(later)
			if v, ok := set[k]; ok && out[k].OK {
				out[k].Value, out[k].OK = v, !math.IsNaN(v)
			}
		}
		return out
	}
	o.Totals = fresh(c.Observation.Totals)
	for _, p := range c.Observation.Pods {
		p.Readings = fresh(p.Readings)
		p.Arrivals = nil // a constant value does not determine the arrival rate
		p.Paces = slices.Clone(p.Paces)
		for k := range p.Paces {
			p.Paces[k].At = p.Paces[k].At.Add(later)
		}
		if p.Phase == scale.Starting { // otherwise it would expire during the simulation
			p.Since = p.Since.Add(later)
		}
		o.Pods = append(o.Pods, p)
	}
	return o
}

// currentValue returns the signal's total, or the mean of its serving replicas.
func (c *Case) currentValue(i int) (float64, bool) {
	if i < len(c.Observation.Totals) && c.Observation.Totals[i].OK {
		return c.Observation.Totals[i].Value, true
	}
	sum, n := 0.0, 0.0
	for _, p := range c.Observation.Pods {
		if p.Phase == scale.Serving && i < len(p.Readings) && p.Readings[i].OK {
			sum, n = sum+p.Readings[i].Value, n+1
		}
	}
	return sum / max(n, 1), n > 0
}

// SPDX-License-Identifier: Apache-2.0

// Package whatif asks the decision engine what would change its mind.
package whatif

import (
	"math"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale"
)

// Change is the least that one signal would have to move for another decision,
// while everything else stays as it is.
type Change struct {
	Signal   string
	Unit     string
	Now      float64       // mean per serving replica, or the workload's total
	Value    float64       // beyond this
	Up       bool          // above Value, else below
	Held     time.Duration // for how long; 0: at once
	Replicas int32         // then decided
}

// Case is a decision that was made: what it was made from.
type Case struct {
	Policy      scale.Policy
	Observation scale.Observation
	State       scale.State
	Now         time.Time
}

// Changes finds for each signal that can be read what would raise the replicas
// and what would lower them. Signals that could not are left out.
func Changes(c *Case) (out []Change) {
	idle := c.hold(-1, 0)
	for i := range c.Policy.Signals {
		now, ok := c.value(i)
		if !ok {
			continue
		}
		for _, up := range []bool{true, false} {
			if x, ok := c.search(i, now, up, idle); ok {
				out = append(out, x)
			}
		}
	}
	return out
}

// outcome is what comes of a situation that lasts: the first other number.
type outcome struct {
	replicas int32
	after    time.Duration
}

// precision is how close the search comes to the threshold, relative.
const precision = 1e-3

// search halves the way to the farthest that the signal might go. The engine
// is monotone: more demand never yields fewer replicas.
func (c *Case) search(i int, now float64, up bool, idle outcome) (Change, bool) {
	sig := &c.Policy.Signals[i]
	wants := func(v float64) (outcome, bool) {
		o := c.hold(i, v)
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
	best, ok := wants(far)
	if !ok {
		return Change{}, false
	}
	near := now
	for math.Abs(far-near) > precision*max(math.Abs(far), sig.Target) {
		mid := (near + far) / 2
		if o, ok := wants(mid); ok {
			far, best = mid, o
		} else {
			near = mid
		}
	}
	return Change{Signal: sig.Name, Unit: sig.Unit, Now: now, Value: near, Up: up, Held: best.after, Replicas: best.replicas}, true
}

// settle is how long a situation is watched beyond the longest window: signals
// may be smoothed, and new replicas be given time.
const settle = 2 * time.Minute

// hold keeps the situation, with signal i at v where i ≥ 0, until the engine
// wants another number than there is.
func (c *Case) hold(i int, v float64) outcome {
	state, cur := c.State, c.Observation.Replicas
	last := settle + max(c.Policy.DownWindow(), c.Policy.Up.Window, c.Policy.Startup)
	for _, r := range append(c.Policy.Up.Policies, c.Policy.Down.Policies...) {
		last = max(last, settle+r.Period)
	}
	for t := time.Duration(0); t <= last; t += time.Second {
		now := c.Now.Add(t)
		var d scale.Decision
		d, state = scale.Decide(c.Policy, c.at(i, v, now, t), state, now)
		if d.Replicas != cur {
			return outcome{d.Replicas, t}
		}
	}
	return outcome{cur, last}
}

// at is the observation as it would be then: the readings are measured anew.
func (c *Case) at(i int, v float64, now time.Time, later time.Duration) scale.Observation {
	o := scale.Observation{Replicas: c.Observation.Replicas}
	fresh := func(in []scale.Reading) []scale.Reading {
		out := append([]scale.Reading(nil), in...)
		for k := range out {
			out[k].At = out[k].At.Add(later)
			if k == i && out[k].OK {
				out[k].Value = v
			}
		}
		return out
	}
	o.Totals = fresh(c.Observation.Totals)
	for _, p := range c.Observation.Pods {
		p.Readings = fresh(p.Readings)
		p.Arrivals = nil // a value that lasts says nothing of what comes
		p.Paces = slices.Clone(p.Paces)
		for k := range p.Paces {
			p.Paces[k].At = p.Paces[k].At.Add(later)
		}
		if p.Phase == scale.Starting { // or it would expire while we look
			p.Since = p.Since.Add(later)
		}
		o.Pods = append(o.Pods, p)
	}
	return o
}

// value is what the signal tells: the total, or the mean of those that serve.
func (c *Case) value(i int) (float64, bool) {
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

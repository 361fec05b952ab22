// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Decide says how many replicas the workload should have now, and why. It is
// pure: the same arguments give the same results, and none of them is changed.
func Decide(p Policy, o Observation, s State, now time.Time) (Decision, State) {
	e := engine{p: &p, o: &o, now: now, census: takeCensus(&p, &o, now)}
	s = e.observe(s)
	e.learn(&s)

	want := e.demand(&s)
	s.Flows = e.keptFlows(&s)
	s.Levels, s.Trends = e.levels, e.trends
	s.Wants = remember(s.Wants, Want{At: now, Low: want, High: want}, max(p.DownWindow(), p.Up.Window))
	want = e.stabilize(want, &s)
	want = e.limit(want, &s)
	want = e.keep(want)
	want = e.bound(want)

	d := Decision{
		Time: now, Current: o.Replicas, Replicas: want, Steps: e.steps, Inputs: e.inputs,
		Serving: e.serving, Starting: e.starting, Unschedulable: e.unschedulable + e.expired,
	}
	d.Rule = lastWord(&d)
	if d.Replicas < d.Current {
		d.Victims = e.victims(int(d.Current - d.Replicas))
	}
	return d, s
}

// engine is one call of Decide on its way through the rules.
type engine struct {
	p   *Policy
	o   *Observation
	now time.Time
	census
	shrunk bool // a signal wants less, by readings from when more replicas served
	steps  []Step
	inputs []Input
	levels []Level
	trends []Trend
	flows  []Flow
}

// step notes that a rule turned before into after, and returns after.
func (e *engine) step(r Rule, before, after int32, f Facts) int32 {
	e.steps = append(e.steps, Step{Rule: r, Before: before, After: after, Facts: f})
	return after
}

// base is the capacity that there is or will soon be. Pods beyond what was
// asked for are about to go, and holding on must not ask for them back.
func (e *engine) base() int32 { return min(e.serving+e.starting, e.o.Replicas) }

// observe brings the state up to what is seen now.
func (e *engine) observe(s State) State {
	switch {
	case s.Since.IsZero() || s.Since.After(e.now) || s.DecidedAt.After(e.now): // the first call, or the clock went back
		s.Since = e.now
	default:
		s.Changes = record(s.Changes, Change{At: e.now, Delta: e.o.Replicas - s.Replicas}, e.p.longestPeriod())
	}
	if s.LastData.After(e.now) {
		s.LastData = e.now
	}
	if e.serving < s.Serving {
		s.ShrankAt = e.now
	}
	s.Replicas, s.Serving = e.o.Replicas, e.serving
	return s
}

// learn takes in how replicas' batches slow them down. The time to the first
// token goes with the batch as well while the server keeps up: prompts wait for
// one another the longer the more of its time is taken. Of one that does not it
// tells for how long that has been so.
func (e *engine) learn(s *State) {
	var curves, firsts []Curve
	since := e.now.Sub(s.DecidedAt)
	seconds := min(max(0, since.Seconds()), curveStep)
	for i := range e.p.Signals {
		sig := &e.p.Signals[i]
		if !sig.Learned() {
			continue
		}
		batches, first := relearn(s.Curves, sig.Name, since), relearn(s.Firsts, sig.Name, since)
		if sig.FirstLimit > 0 {
			e.overloads(i, s)
		}
		for k := range e.o.Pods {
			pod := &e.o.Pods[k]
			pace := pod.pace(i)
			told := e.counts(pod, Reading{Value: pace.Latency, At: pace.At, OK: pace.OK})
			if !told || !within(pace.Batch, 0, mostBatch) || !within(pace.Latency, leastLatency, mostLatency) {
				continue
			}
			batches.add(pace.Batch, pace.Latency, seconds)
			if within(pace.First, leastLatency, mostLatency) && within(pace.Firsts, 0, mostArrivals) && e.now.Sub(s.OverloadAt) >= firstLag {
				first.add(pace.Batch, pace.First, pace.Firsts*seconds)
			}
		}
		curves = append(curves, batches.Curve)
		if sig.FirstLimit > 0 {
			firsts = append(firsts, first.Curve)
		}
	}
	s.Curves, s.Firsts, s.DecidedAt = curves, firsts, e.now
}

// overloads notes in s when a server last did not keep up, by signal i.
func (e *engine) overloads(i int, s *State) {
	most := keepsUp * capacityOf(&e.p.Signals[i], s).target
	if s.OverloadAt.After(e.now) { // the clock went back
		s.OverloadAt = e.now
	}
	for k := range e.o.Pods {
		pod := &e.o.Pods[k]
		if r := pod.reading(i); e.counts(pod, r) && r.Value > most {
			s.OverloadAt = e.now
		}
	}
}

func within(x, least, most float64) bool { return x > least && x < most }

// stabilize holds a change until the whole window agrees with it.
func (e *engine) stabilize(want int32, s *State) int32 {
	cur := e.o.Replicas
	switch {
	case want < cur:
		window := e.p.DownWindow()
		// A window longer than a reading lives holds what was wanted before.
		if e.shrunk && window < e.p.maxAge() {
			return e.step(RuleSettling, want, max(want, e.base()), Facts{Down: true})
		}
		if window <= 0 {
			return want
		}
		_, highest, _ := extremes(s.Wants, e.now, window)
		if e.now.Sub(s.Since) < window {
			highest = cur // the window is not covered yet, as after a restart
		}
		if held := min(cur, max(want, highest)); held != want {
			return e.step(RuleStabilization, want, held, Facts{Window: window, Down: true})
		}
	case want > cur && e.p.Up.Window > 0:
		lowest, _, _ := extremes(s.Wants, e.now, e.p.Up.Window)
		if e.now.Sub(s.Since) < e.p.Up.Window {
			lowest = cur
		}
		if held := max(cur, min(want, lowest)); held != want {
			return e.step(RuleStabilization, want, held, Facts{Window: e.p.Up.Window})
		}
	}
	return want
}

// keep lets replicas that are starting begin to serve before any goes: to take
// away what has been waited for, and is paid for, helps nobody. What never
// starts is not kept: it stops counting as starting.
func (e *engine) keep(want int32) int32 {
	held := e.base()
	if want >= held || e.starting == 0 {
		return want
	}
	return e.step(RuleStarting, want, held, Facts{Coming: e.starting, Serving: e.serving, Stuck: e.unschedulable + e.expired, Wait: e.wait, Down: true})
}

// bound applies the budget and the policy's bounds, which have the last word.
func (e *engine) bound(want int32) int32 {
	limit := e.p.ceiling()
	if limit < e.p.Max && want > limit {
		want = e.step(RuleBudget, want, limit, Facts{Limit: e.p.MaxGPUs})
	}
	if bounded := min(max(want, e.p.Min), e.p.Max); bounded != want {
		return e.step(RuleBounds, want, bounded, Facts{Limit: bounded, Down: bounded > want})
	}
	return want
}

// lastWord finds the rule that made the decision: the last step that moved the
// number, else the last step.
func lastWord(d *Decision) Rule {
	for _, s := range slices.Backward(d.Steps) {
		if s.Before != s.After {
			return s.Rule
		}
	}
	if n := len(d.Steps); n > 0 {
		return d.Steps[n-1].Rule
	}
	return RuleDemand
}

// victims names the n pods that are missed least: those that no node takes,
// then those that are starting (the youngest first), then the idlest. While any
// serving replica stays, one that can be read does: what is left must tell.
func (e *engine) victims(n int) []string {
	pods := make([]*Replica, 0, len(e.o.Pods))
	for i := range e.o.Pods {
		if e.o.Pods[i].Phase != Terminating {
			pods = append(pods, &e.o.Pods[i])
		}
	}
	slices.SortStableFunc(pods, e.missedLess)
	n = min(n, len(pods))
	if keep := e.lastReadable(pods, n); keep >= 0 {
		p := pods[keep]
		pods = append(slices.Delete(pods, keep, keep+1), p)
	}
	names := make([]string, 0, n)
	for _, p := range pods[:n] {
		names = append(names, p.Name)
	}
	return names
}

// missedLess orders pods by how little they are missed.
func (e *engine) missedLess(a, b *Replica) int {
	rank := [...]int{Unschedulable: 0, Starting: 1, Serving: 2, Terminating: 3}
	if d := rank[a.Phase] - rank[b.Phase]; d != 0 {
		return d
	}
	return cmp.Or(cmp.Compare(e.load(a), e.load(b)), b.Since.Compare(a.Since))
}

// load is what a serving pod is known to carry; one that cannot be read may
// carry anything.
func (e *engine) load(p *Replica) float64 {
	switch r := p.reading(0); {
	case p.Phase != Serving:
		return 0
	case e.counts(p, r):
		return r.Value
	}
	return math.Inf(1)
}

// lastReadable is the place of the last of the first n pods whose reading
// counts, if none behind them has one though some serve; else -1.
func (e *engine) lastReadable(pods []*Replica, n int) int {
	blind := false
	for _, p := range pods[n:] {
		if e.counts(p, p.reading(0)) {
			return -1
		}
		blind = blind || p.Phase == Serving
	}
	for i := n - 1; blind && i >= 0; i-- {
		if e.counts(pods[i], pods[i].reading(0)) {
			return i
		}
	}
	return -1
}

// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/latency"
)

// capacity is how much of a signal one replica takes.
type capacity struct {
	target  float64 // the signal's target per replica, given or learned
	double  float64 // requests in flight at which tokens take twice as long; 0: the signal is linear
	learned bool    // target is learned
}

const (
	// batchLoad is the load that a replica at its target is assumed to carry where no
	// curve is known, as a share of the load at which the requests in flight grow
	// without bound. Models of 8 and 70 billion parameters with common limits carry
	// 0.3 to 0.5.
	batchLoad = 0.4
	// nearIdle is the share of a limit that idle replicas may take before the given
	// target counts beside the learned one.
	nearIdle = 0.9
	// targetRange bounds the learned target: from the given target ÷ 8 to the given
	// target × 8.
	targetRange = 8.0
	// backlogFrom is the multiple of a replica's target above which requests in
	// flight are a backlog: they show how long the overload has lasted, not how large
	// it is. backlogWeight is the weight of a request in it.
	backlogFrom, backlogWeight = 2.0, 0.03
	// firstLag is how long after an overload the time to the first token is not
	// learned from: it is that of requests that waited, and rates are means over the
	// last 15 s.
	firstLag = 30 * time.Second
	// curveStep is the longest time that one reading of a replica may stand for, in
	// seconds.
	curveStep = 5
	// Readings outside these bounds are invalid: no server has a million requests in
	// flight, takes an hour per token, or makes a token in 10 µs.
	mostBatch, leastLatency, mostLatency = 1e6, 1e-5, 3600
)

// load is the share of its capacity that a replica uses at the value x. With b
// requests in flight everything takes 1 + b/double times as long, and the load
// is b/(b+double) of the load at which b grows without bound.
func (c *capacity) load(x float64) float64 {
	if c.double <= 0 {
		return x / c.target
	}
	backlog := max(0, x-backlogFrom*c.target)
	x -= backlog
	return x/(x+c.double)*(c.target+c.double)/c.target + backlogWeight*backlog/c.target
}

// capacityOf is what a replica takes of a signal, by its target and by what was
// learned.
func capacityOf(sig *Signal, s *SignalState) capacity {
	if sig.Law != Batching {
		return capacity{target: sig.Target}
	}
	takes := capacity{target: sig.Target, double: sig.Target * (1 - batchLoad) / batchLoad}
	if !sig.Learned() {
		return takes
	}
	tokens, first := &s.TokenLatency, &s.FirstTokenLatency
	target := math.Inf(1)
	if l, ok := tokens.Fit(); ok {
		takes.double = l.Double
		if most, ok := l.Most(sig.Limit); ok {
			target, takes.learned = limitTarget(tokens, most, l.High(0)/sig.Limit, sig.Target), true
		}
	}
	if most, idle, ok := first.Most(sig.FirstLimit); ok {
		target, takes.learned = min(target, limitTarget(tokens, most, idle/sig.FirstLimit, sig.Target)), true
	}
	if takes.learned {
		takes.target = min(max(target, sig.Target/targetRange), sig.Target*targetRange)
	}
	return takes
}

// limitTarget limits the fitted target to the observed range. idle is the share
// of the limit that idle replicas take. The closer it is to 1, the less fewer
// requests help, and the more the given target counts.
func limitTarget(c *latency.Curve, fitted, idle, given float64) float64 {
	target := min(fitted, max(c.Reach(), given/2))
	if near := (idle - nearIdle) / (1 - nearIdle); near > 0 && target < given {
		target += (given - target) * near
	}
	return target
}

// learn updates the latency curves with the replicas' readings. The time to the
// first token also follows the requests in flight, but only while the server
// keeps up: in an overload it shows how long the overload has lasted.
func (e *evaluation) learn() {
	s := &e.state
	if !e.signal.Learned() {
		s.TokenLatency, s.FirstTokenLatency, s.OverloadedAt = latency.Curve{}, latency.Curve{}, time.Time{}
		return
	}
	seconds := min(max(0, e.sinceLast.Seconds()), curveStep)
	tokens, first := s.TokenLatency.Faded(e.sinceLast), s.FirstTokenLatency.Faded(e.sinceLast)
	if e.signal.FirstLimit > 0 {
		s.OverloadedAt = e.overloadedAt()
	}
	kept := e.now.Sub(s.OverloadedAt) >= firstLag
	for k := range e.o.Pods {
		pod := &e.o.Pods[k]
		pace := pod.pace(e.i)
		valid := e.isValid(pod, Reading{Value: pace.TokenSeconds, At: pace.At, OK: pace.OK})
		if !valid || !isBetween(pace.Batch, 0, mostBatch) || !isBetween(pace.TokenSeconds, leastLatency, mostLatency) {
			continue
		}
		tokens.Add(pace.Batch, pace.TokenSeconds, seconds)
		if kept && isBetween(pace.FirstTokenSeconds, leastLatency, mostLatency) && isBetween(pace.FirstTokensPerSecond, 0, mostArrivals) {
			first.Add(pace.Batch, pace.FirstTokenSeconds, pace.FirstTokensPerSecond*seconds)
		}
	}
	s.TokenLatency, s.FirstTokenLatency = tokens.Curve, latency.Curve{}
	if e.signal.FirstLimit > 0 {
		s.FirstTokenLatency = first.Curve
	}
}

// overloadedAt is when a server last had too many requests to keep up with them.
func (e *evaluation) overloadedAt() time.Time {
	most := keepsUp * capacityOf(e.signal, &e.state).target
	for k := range e.o.Pods {
		pod := &e.o.Pods[k]
		if r := pod.reading(e.i); e.isValid(pod, r) && r.Value > most {
			return e.now
		}
	}
	if e.state.OverloadedAt.After(e.now) { // the clock went back
		return e.now
	}
	return e.state.OverloadedAt
}

func isBetween(x, least, most float64) bool { return x > least && x < most }

// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"math"
	"math/rand/v2"
	"strconv"
)

// phase is where a simulated pod is in its life.
type phase uint8

const (
	waiting  phase = iota // no node takes it: unschedulable, holds no GPU
	pulling               // on a node, its containers do not run yet: phase Pending
	loading               // its containers run, it is not ready
	serving               // ready
	draining              // deleted; finishes what it has
	gone
)

// pod is one replica with the pod around it.
type pod struct {
	replica
	id      int
	name    string
	phase   phase
	created float64
	since   float64 // when it came into its phase
	bound   float64 // when a node takes it; in the phase waiting not known to anyone
	runs    float64 // when its containers run
	ready   float64 // when it becomes ready
	last    reading // of its integrals
}

// Startup is how long pods take. The times are medians of log-normal draws.
type Startup struct {
	Median float64 // seconds from a node taking the pod to its readiness
	Sigma  float64 // of the logarithm

	// NodeShare of the pods find no room on a node and wait for a new one for
	// NodeMedian seconds, unschedulable.
	NodeShare, NodeMedian float64

	// Spells is how often a day the cluster is full for SpellMedian seconds:
	// nothing is scheduled that was not before.
	Spells, SpellMedian float64
}

// DefaultStartup is the distribution around a median: a tenth of the pods wait
// 90 s for a node, and once a day nothing can be scheduled for ten minutes.
func DefaultStartup(median float64) Startup {
	return Startup{Median: median, Sigma: 0.25, NodeShare: 0.1, NodeMedian: 90, Spells: 1, SpellMedian: 600}
}

// pullShare is the part of a start that is spent before the containers run;
// warmShare the last part of it, in which a server captures its graphs and its
// GPUs are busy without serving.
const (
	pullShare = 0.15
	warmShare = 0.2
)

// spell is a time in which nothing is scheduled.
type spell struct{ from, to float64 }

// spells draws the spells of a run.
func (s Startup) spells(seed uint64, seconds float64) (out []spell) {
	if s.Spells <= 0 {
		return nil
	}
	rng := rand.New(rand.NewPCG(seed, 0x5be11))
	for at := rng.ExpFloat64() * 86400 / s.Spells; at < seconds; at += rng.ExpFloat64() * 86400 / s.Spells {
		end := at + lognormal(rng, s.SpellMedian, 0.5)
		out = append(out, spell{at, end})
		at = end
	}
	return out
}

func lognormal(rng *rand.Rand, median, sigma float64) float64 {
	return median * math.Exp(sigma*rng.NormFloat64())
}

// newPod draws pod number id's start.
func (s *Startup) newPod(m *Model, patience float64, seed uint64, id int, now float64, full []spell) *pod {
	p := &pod{id: id, name: "p" + strconv.Itoa(id), created: now, since: now}
	p.m, p.patience = m, patience
	p.bound, p.runs, p.ready = s.draw(seed, id).from(now, full)
	if p.bound <= now {
		p.phase = pulling
	}
	return p
}

// luck is how long one pod's start takes, in seconds.
type luck struct{ node, took float64 }

// draw is pod number id's luck. It depends on the seed and the number only, so
// that policies meet the same.
func (s *Startup) draw(seed uint64, id int) (l luck) {
	rng := rand.New(rand.NewPCG(seed, uint64(id)))
	l.took = lognormal(rng, s.Median, s.Sigma)
	if rng.Float64() < s.NodeShare {
		l.node = lognormal(rng, s.NodeMedian, 0.4)
	}
	return l
}

// from is when a pod that is created now is bound to a node, runs its containers
// and becomes ready.
func (l luck) from(now float64, full []spell) (bound, runs, ready float64) {
	bound = now + l.node
	for _, f := range full {
		if bound >= f.from && bound < f.to {
			bound = f.to
		}
	}
	bound = math.Ceil(bound)
	return bound, math.Ceil(bound + l.took*pullShare), math.Ceil(bound + max(1, l.took))
}

// starting says whether the pod is on its way to serving.
func (p *pod) starting() bool { return p.phase <= loading }

// tick moves a starting pod on.
func (p *pod) tick(now float64) (ready bool) {
	if p.phase == waiting && now >= p.bound {
		p.phase, p.since = pulling, now
	}
	if p.phase == pulling && now >= p.runs {
		p.phase, p.since = loading, now
	}
	if p.phase == loading && now >= p.ready {
		p.phase, p.since, p.now = serving, now, now
		return true
	}
	return false
}

// warming says whether a loading pod keeps its GPUs busy at now.
func (p *pod) warming(now float64) bool {
	return p.phase == loading && now > p.ready-warmShare*(p.ready-p.bound)
}

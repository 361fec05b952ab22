// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/facts"
	"github.com/gpupilot/gpupilot/internal/scale/promise"
)

// LearnInterval is how often Learn should be called.
const LearnInterval = 5 * time.Minute

// mostTokens is the rate, in tokens/s of a replica, above which a reading is invalid.
const mostTokens = 1e8

// mostCacheUse is the highest valid share of a KV cache: in blocks, it may be one too many.
const mostCacheUse = 1.05

// promised reports whether the signal has an objective, whose plan then decides.
func (s *Signal) promised() bool { return s.Objective > 0 && s.Learned() }

// Terms returns what the signal promises, if it has an objective.
func (s *Signal) Terms() promise.Terms {
	return promise.Terms{
		Limits:    promise.Limits{Token: s.Limit, FirstToken: s.FirstLimit},
		Objective: s.Objective, Over: s.Over.Seconds(), Use: s.BudgetUse,
	}
}

// forgetTokens is how long after the last reading of tokens the plan still counts. Then
// the server no longer counts them, and the requests in flight decide.
const forgetTokens = 10 * time.Minute

// keepPromise replaces the demand of the requests in flight by what the objective's plan
// asks for. ok is false while too little is known of the tokens.
func (e *evaluation) keepPromise(m measure) (_ measure, d promise.Demand, ok bool) {
	s := &e.state
	if !e.signal.promised() {
		s.Promise, s.TokensAt, s.LoadedAt = promise.State{}, time.Time{}, time.Time{}
		return m, d, false
	}
	if s.LoadedAt.IsZero() && m.value > 0 {
		s.LoadedAt = e.now
	}
	r := e.work(&m)
	if r.Read > 0 {
		s.TokensAt = e.now
	}
	s.Wanted = 0
	seconds := min(max(0, e.sinceLast.Seconds()), curveStep)
	if e.sinceLast > forgetTokens { // the first decision, or the first one after a pause
		seconds = min(seconds, 1)
	}
	s.Promise = s.Promise.Next(r, seconds, e.signal.Terms())
	d, ok = s.Promise.Demand(e.signal.Terms(), e.p.typicalStartup().Seconds())
	if age := e.now.Sub(s.TokensAt); !ok || age > forgetTokens || age < 0 {
		return m, d, false
	}
	m.up, m.down, m.whole = d.Replicas, d.Replicas, d.Replicas
	s.Wanted = float64(facts.Replicas(d.Replicas))
	m.fresh, m.silent, m.without = int32(r.Read), m.silentTokens, m.withoutTokens
	m.sick = float64(m.silent) * backlogFrom
	return m, d, true
}

// awaitTokens is for how long after the first requests their tokens are awaited: two scrapes
// of a counter, a long prompt, and the first step of [promise.State].
const awaitTokens = 10 * time.Second

// isMeasuring reports whether a token's cost is known in a few seconds. Until then, requests
// in flight would ask for replicas that the load may not need, and that take long to start.
func (e *evaluation) isMeasuring() bool {
	s := &e.state
	age := e.now.Sub(s.LoadedAt)
	awaited := age >= 0 && age < awaitTokens && s.Promise.Work.Weight == 0
	return e.signal.promised() && e.base() > 0 && (awaited || s.Promise.IsNew())
}

// work adds up what the replicas did, and counts those that should say so, and do not.
func (e *evaluation) work(m *measure) promise.Reading {
	r := promise.Reading{At: e.now, Serving: float64(e.serving), Wanted: e.state.Wanted, Most: float64(e.p.ceiling())}
	timed, running, waiting, told := 0.0, 0.0, 0.0, 0.0
	for k := range e.o.Pods {
		pod := &e.o.Pods[k]
		x := pod.pace(e.i)
		if !e.isValid(pod, Reading{At: x.At, OK: x.OK}) || !x.countsTokens() {
			e.noteSilent(pod, &m.silentTokens, &m.withoutTokens)
			continue
		}
		r.Read++
		r.Prompt += x.PromptTokensPerSecond
		r.Output += x.OutputTokensPerSecond
		r.First += x.FirstTokensPerSecond
		r.Ended += x.EndedPerSecond
		r.Missed += min(x.MissedPerSecond, x.EndedPerSecond)
		if isBetween(x.TokenSeconds, leastLatency, mostLatency) {
			r.TokenSeconds += x.TokenSeconds * x.OutputTokensPerSecond
			timed += x.OutputTokensPerSecond
		}
		if r.Held += x.CacheUse; x.CacheUse > 0 || x.Running == 0 {
			told++
		}
		running, waiting = running+x.Running, waiting+x.Waiting
		if a := pod.arrivals(e.i); e.isValid(pod, a) {
			r.Arrived += min(a.Value, mostArrivals)
		}
	}
	if running > 0 {
		r.Queued = waiting / running
	}
	if told > 0 {
		r.Held *= r.Read / told // those that do not tell hold as much as the others
	}
	if timed > 0 {
		r.TokenSeconds /= timed
	}
	return r
}

// countsTokens reports whether the pace has valid rates of tokens and requests.
func (p *Pace) countsTokens() bool {
	within := func(x, most float64) bool { return x >= 0 && x <= most }
	return p.Counted && within(p.PromptTokensPerSecond, mostTokens) && within(p.OutputTokensPerSecond, mostTokens) &&
		within(p.FirstTokensPerSecond, mostArrivals) && within(p.EndedPerSecond, mostArrivals) && within(p.MissedPerSecond, mostArrivals) &&
		within(p.CacheUse, mostCacheUse) && within(p.Running, mostArrivals) && within(p.Waiting, mostArrivals)
}

// Learn returns the state with the plans that keep the policy's objectives, by what was
// recorded. It is pure, takes milliseconds for each objective, and is called every
// LearnInterval.
func Learn(p Policy, s State) State {
	startup := p.typicalStartup()
	return eachPromise(p, s, func(i int, x promise.State) promise.State {
		sig := &p.Signals[i]
		return x.Learn(sig.Terms(), promise.Bounds{Min: int(p.Min), Max: int(p.ceiling()), Startup: startup.Seconds()})
	})
}

// Recall returns the state with the load that was recorded before it. past returns the steps
// of a signal of the policy, oldest first, of which the last one ends at until. Recall is pure,
// and is called after a decision.
func Recall(p Policy, s State, past func(signal int, from, until time.Time) []promise.Load) State {
	at := s.DecidedAt
	return eachPromise(p, s, func(i int, x promise.State) promise.State {
		return x.Recall(at, func(from, until time.Time) []promise.Load { return past(i, from, until) })
	})
}

// Load returns the tokens/s that a signal with an objective was asked for in the last seconds;
// ok is false if none were read at the last decision.
func (s *State) Load(signal int) (l promise.Load, ok bool) {
	if signal >= len(s.Signals) || s.Signals[signal].TokensAt.IsZero() || !s.Signals[signal].TokensAt.Equal(s.DecidedAt) {
		return promise.Load{}, false
	}
	return s.Signals[signal].Promise.Last()
}

func eachPromise(p Policy, s State, change func(signal int, x promise.State) promise.State) State {
	s.Signals = append([]SignalState(nil), s.Signals...)
	for i := range p.Signals {
		sig := &p.Signals[i]
		if !sig.promised() {
			continue
		}
		for k := range s.Signals {
			if s.Signals[k].Name == sig.Name {
				s.Signals[k].Promise = change(i, s.Signals[k].Promise)
			}
		}
	}
	return s
}

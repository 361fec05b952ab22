// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// demand asks every signal and takes the most that one of them wants. It
// notes in s when a signal was last readable and when it last probed.
func (e *engine) demand(s *State) int32 {
	cur := e.o.Replicas
	want, readable, missing := int32(0), int32(0), false
	deciding, at := -1, 0 // the first signal that asks for the most, and where its steps begin
	for i := range e.p.Signals {
		first := len(e.steps)
		w, ok := e.signal(i, s)
		if !ok {
			missing = true
			continue
		}
		readable++
		if deciding < 0 || w > want {
			deciding, at = i, first
		}
		want = max(want, w)
	}
	if deciding >= 0 {
		e.inputs[deciding].Deciding, e.steps[at].Facts.MostOf = true, readable
	}
	switch {
	case readable == 0 && cur > 0 && e.serving == 0:
		return e.step(RuleNotServing, cur, cur, Facts{Coming: e.starting, Stuck: e.unschedulable + e.expired})
	case readable == 0:
		return e.fallback(cur, s)
	}
	s.LastData = e.now
	if missing && want < cur {
		return e.step(RuleMissing, want, cur, Facts{})
	}
	return e.activate(want)
}

// measure is what one signal says before any rule: the replicas that it wants,
// as a fraction, if the replicas without a reading carry nothing (up) or
// their full share (down).
type measure struct {
	up, down float64
	whole    float64 // up, if the replicas without a reading carry as much as the others
	value    float64 // mean per replica, or the total
	fresh    int32
	of       int32 // how many could have been fresh
}

// signal turns signal i into a number of replicas. ok is false where it cannot
// be read.
func (e *engine) signal(i int, s *State) (want int32, ok bool) {
	sig := &e.p.Signals[i]
	takes := capacityOf(sig, s)
	m, age, ok := e.measure(i, &takes)
	e.inputs = append(e.inputs, Input{Signal: sig.Name, Unit: sig.Unit, Value: m.value, Target: takes.target, Fresh: m.fresh, Age: age})
	if !ok {
		return 0, false
	}
	m, a := e.arriving(i, m, &takes, s.flow(sig.Name))
	seen := m.up
	m = e.steady(m, s.level(sig.Name))
	facts := Facts{
		Signal: sig.Name, Unit: sig.Unit, Value: m.value, Target: takes.target,
		Total: sig.Type == Value || m.of == 0, Whole: sig.Type == Value,
		Serving: e.serving, Fresh: m.fresh, Coming: e.starting, Learned: takes.learned,
		Steadied: replicas(m.up) != replicas(seen), Demand: printable(seen), Mean: printable(m.up),
	}
	if sig.Law == Batching && m.of > 0 {
		facts.Batching, facts.Load = true, printable(takes.load(m.value))
		facts.Arrivals, facts.Capacity, facts.Watched = a.rate, printable(a.capacity), a.watched
		facts.Arriving, facts.Limited = a.raised, a.limited
	}
	base := e.base()
	want = e.step(RuleDemand, e.o.Replicas, between(m, base), facts)
	if t, within := e.tolerated(m, base); within && want != base {
		facts.Tolerance = t
		want = e.step(RuleTolerance, want, base, facts)
	}
	if want < base && float64(m.fresh) < coverage*float64(m.of) {
		want = e.step(RulePartial, want, base, facts)
	}
	want = e.ahead(i, want, m, facts, s)
	return e.censored(i, want, m, facts, s), true
}

// printable is x within what JSON and people can read.
func printable(x float64) float64 {
	if math.IsNaN(x) {
		return 0
	}
	return min(x, mostDemand)
}

// steady tells the demand's noise from its changes, unless the policy wants no
// stabilisation at all.
func (e *engine) steady(m measure, before Level) measure {
	if e.p.Down.Window == 0 {
		return m
	}
	// Readings that come and go are no change of the demand.
	whole := min(max(m.up, m.whole), mostDemand)
	level := before.next(whole, e.now)
	e.levels = append(e.levels, level)
	m.down = max(0, m.down+level.Value-whole)
	m.up = max(0, min(m.up, whole)+level.Value-whole)
	return m
}

// measure reads signal i from the totals or from the serving replicas, each of
// which takes so much.
func (e *engine) measure(i int, takes *capacity) (m measure, age time.Duration, ok bool) {
	sig := &e.p.Signals[i]
	if t := e.o.total(i); t.fresh(e.now, e.p.maxAge()) && t.Value >= 0 {
		m.value, m.fresh = t.Value, 1
		m.up = t.Value / sig.Target
		if sig.Type == Value {
			m.up *= float64(e.serving)
		}
		m.down = m.up
		return m, max(0, e.now.Sub(t.At)), true
	}
	sum, most := 0.0, 0.0
	for k := range e.o.Pods {
		pod := &e.o.Pods[k]
		r := pod.reading(i)
		if !e.counts(pod, r) {
			continue
		}
		sum, most = sum+r.Value, max(most, r.Value)
		m.fresh++
		age = max(age, e.now.Sub(r.At))
	}
	m.of = e.serving
	if m.fresh == 0 || math.IsInf(sum, 0) {
		m.fresh = 0
		return m, 0, false
	}
	mean := sum / float64(m.fresh)
	blind := float64(m.of - m.fresh)
	if sig.Type == AverageValue {
		m.value = mean
		m.up = float64(m.fresh) * takes.load(mean)
		m.down = m.up + blind*max(takes.load(mean), 1)
		m.whole = m.up + blind*takes.load(mean)
		return m, age, true
	}
	m.value = map[gpu.Aggregation]float64{gpu.Sum: sum, gpu.Max: most}[sig.Aggregate]
	if sig.Aggregate != gpu.Sum && sig.Aggregate != gpu.Max {
		m.value = mean
	}
	m.up = float64(e.serving) * m.value / sig.Target
	m.down = m.up
	return m, age, true
}

// counts says whether a reading tells of a replica that serves: it is fresh, it
// was measured after the replica had warmed up, and it is not negative, which
// would be garbage and not an idle replica.
func (e *engine) counts(pod *Replica, r Reading) bool {
	return pod.Phase == Serving && r.fresh(e.now, e.p.maxAge()) && r.Value >= 0 && !r.At.Before(pod.Since.Add(warm))
}

// between turns a measure into replicas: up if even the known load alone wants
// more than base, down if even the blind replicas at full share want less.
func between(m measure, base int32) int32 {
	if up := replicas(m.up); up >= base {
		return up
	}
	return min(replicas(m.down), base)
}

// tolerated says whether the measure is close enough to base to be let be, and
// within what relative deviation.
func (e *engine) tolerated(m measure, base int32) (float64, bool) {
	if base == 0 {
		return 0, false
	}
	b := float64(base)
	if m.up > b {
		return e.p.Up.Tolerance, m.up <= b*(1+e.p.Up.Tolerance)
	}
	return e.p.Down.Tolerance, m.down <= b && m.down >= b*(1-e.p.Down.Tolerance)
}

// censored handles a signal at its ceiling, which no longer tells how much
// load there is: it waits for capacity that is on the way, else it probes, once
// for each time that the serving replicas changed. It also waits, in both
// directions, while a replica has only just begun to serve and readings may be
// from before the load spread; downward while they may be from when more
// served; and upward while new replicas still work off what had piled up.
func (e *engine) censored(i int, want int32, m measure, facts Facts, s *State) int32 {
	sig := &e.p.Signals[i]
	base, youngest := e.base(), e.youngest()
	if e.before(i, youngest) {
		if want == base {
			return base
		}
		return e.step(RuleSettling, want, base, facts)
	}
	e.shrunk = e.shrunk || want < base && e.before(i, s.ShrankAt)
	saturated := sig.Ceiling > 0 && sig.Type == AverageValue && m.value >= saturation*sig.Ceiling &&
		float64(m.fresh) >= coverage*float64(m.of)
	drained := s.noteSaturation(saturated, youngest, e.now)
	switch wait := drained.Sub(e.now); {
	case wait > 0 && want <= base:
		return want
	case wait > 0:
		facts.Wait = wait
		return e.step(RuleDraining, want, base, facts)
	case !saturated:
		return want
	case e.starting > 0:
		facts.Wait = e.wait
		return e.step(RuleStarting, want, max(want, base), facts)
	case e.serving <= s.Probed && e.now.Sub(s.ProbedAt) < e.p.credit() && !s.ProbedAt.After(e.now):
		return max(want, base) // what the last probe asked for has not come
	case m.fresh < m.of:
		return max(want, base) // a replica that has yet to tell may be idle
	}
	growth := min(probeGrowth, probeLimit*m.value/sig.Target)
	probe := int32(min(float64(e.serving)*growth, math.MaxInt32/2))
	s.ProbedAt, s.Probed = e.now, e.serving
	if probe <= want {
		return want
	}
	return e.step(RuleSaturated, want, probe, facts)
}

// noteSaturation keeps the time since when signals are at their ceiling, and
// returns until when the replica that began to serve last, at youngest, may be
// working off what had piled up before; a time in the past if nothing had.
func (s *State) noteSaturation(saturated bool, youngest, now time.Time) (drained time.Time) {
	if s.SaturatedSince.After(now) { // the clock went back
		s.SaturatedSince = time.Time{}
	}
	if !s.SaturatedSince.IsZero() && youngest.After(s.SaturatedSince) {
		piled := time.Duration(drainShare * float64(youngest.Sub(s.SaturatedSince)))
		drained = youngest.Add(min(piled, drainLimit))
	}
	switch {
	case saturated && s.SaturatedSince.IsZero():
		s.SaturatedSince = now
	case !saturated && !drained.After(now):
		s.SaturatedSince = time.Time{}
	}
	return drained
}

// youngest is when the replica began to serve that did so last; zero if none
// serves.
func (e *engine) youngest() (at time.Time) {
	for k := range e.o.Pods {
		p := &e.o.Pods[k]
		if p.Phase == Serving && p.Since.After(at) && !p.Since.After(e.now) {
			at = p.Since
		}
	}
	return at
}

// before says whether readings of signal i that count are from before the load
// had spread anew over the replicas that serve since at. It ends with those
// readings' next values, or with their age.
func (e *engine) before(i int, at time.Time) bool {
	if at.IsZero() || at.After(e.now) {
		return false
	}
	for k := range e.o.Pods {
		p := &e.o.Pods[k]
		if r := p.reading(i); e.counts(p, r) && r.At.Before(at.Add(warm)) {
			return true
		}
	}
	return false
}

// fallback is for when nothing can be read: hold, and after a while do what the
// policy declared, which never lowers.
func (e *engine) fallback(cur int32, s *State) int32 {
	last := s.LastData
	if last.IsZero() {
		last = s.Since
	}
	silent := e.now.Sub(last)
	if silent < e.p.missingAfter() || e.p.Missing == MissingHold {
		return e.step(RuleMissing, cur, cur, Facts{Wait: silent, Serving: e.serving})
	}
	n := e.p.MissingFloor
	if e.p.Missing == MissingMax {
		n = e.p.ceiling()
	}
	return e.step(RuleFallback, cur, max(cur, n), Facts{Wait: silent, Serving: e.serving})
}

// activate decides about zero: a workload goes there only when every signal
// that has an activation is at or below it, and leaves when one is above.
func (e *engine) activate(want int32) int32 {
	if e.p.Min > 0 {
		return want
	}
	active, known := false, false
	for i := range e.p.Signals {
		a, t := e.p.Signals[i].Activation, e.o.total(i)
		if a == nil || !t.fresh(e.now, e.p.maxAge()) {
			continue
		}
		known = true
		active = active || t.Value > *a
	}
	switch {
	case active && want < 1, !known && want < 1 && e.o.Replicas > 0:
		return e.step(RuleActivation, want, 1, Facts{Limit: 1})
	case !active && known && want <= 1:
		return e.step(RuleActivation, want, 0, Facts{Down: true})
	}
	return want
}

// replicas rounds up, forgiving the last bits of a division.
func replicas(x float64) int32 {
	const most = math.MaxInt32 / 2
	if x > most || math.IsNaN(x) {
		return most
	}
	return int32(max(0, math.Ceil(x-1e-9)))
}

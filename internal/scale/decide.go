// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/facts"
)

// Decide returns how many replicas the workload should have now, and why. It is
// pure: the same arguments give the same results, and it changes none of them.
//
// It counts the replicas, evaluates each signal on its own, and takes the most
// that a signal wants. The rules of the workload follow: fallback, activation,
// stabilisation, rates, starting replicas, budget and bounds. Replicas that finish their
// requests before they are removed are not replicas for these rules.
func Decide(p Policy, o Observation, s State, now time.Time) (Decision, State) {
	if p.Drain > 0 || o.isDraining() {
		return decideDrain(&p, &o, s, now)
	}
	s.Drain = nil
	d, s, _ := decide(p, o, s, now)
	return d, s
}

// decide is Decide without Policy.Drain. asked is the number before stabilisation and rates.
func decide(p Policy, o Observation, s State, now time.Time) (d Decision, _ State, asked int32) {
	e := engine{view: view{p: &p, o: &o, now: now, census: takeCensus(&p, &o, now)}}
	s = e.observe(s)
	want, s := e.demand(s)
	asked, s = want, e.remember(s)
	want = e.apply(want, e.stabilize(want, &s))
	e.needed = want
	want = e.apply(want, e.limit(want, s.Changes))
	own := want
	want = e.apply(want, e.keepStarting(want))
	want = e.apply(want, e.pair(want))
	want, unused := e.idle(want, &s)
	want = e.bound(want, &s)
	s.Zeroed = want == 0 && (o.Replicas > 0 || s.Zeroed || p.Min == 0)

	d = Decision{
		Time: now, Current: o.Replicas, Replicas: want, Rule: e.rule(), Steps: e.steps, Inputs: e.inputs,
		Serving: e.serving, Starting: e.starting, Unschedulable: e.unschedulable + e.expired,
		Rollout: e.rollout, Idle: unused, Own: own,
	}
	if d.Replicas < d.Current {
		d.Victims = e.victims(int(d.Replicas))
	}
	return d, s, asked
}

// engine is one call of Decide on its way through the rules.
type engine struct {
	view
	joined
	steps     []Step // of the signals, in the policy's order, then of the workload
	ofSignals int    // number of steps of signals
	needed    int32  // before rates
	inputs    []Input
}

// ruling is what a rule makes of a number, and why. The zero ruling leaves it.
type ruling struct {
	rule  Rule
	to    int32
	facts facts.Facts
}

// apply returns the number after a ruling, and records it.
func (e *engine) apply(want int32, r ruling) int32 {
	if r.rule == "" {
		return want
	}
	return e.step(r.rule, want, r.to, r.facts)
}

// step records that a rule turned before into after, and returns after.
func (e *engine) step(r Rule, before, after int32, f facts.Facts) int32 {
	e.steps = append(e.steps, Step{Rule: r, Before: before, After: after, Facts: f})
	return after
}

// observe updates the state with what is observed now.
func (e *engine) observe(s State) State {
	change := Change{At: e.now, Delta: e.o.Replicas - s.Replicas}
	switch {
	case s.Since.IsZero() || s.Since.After(e.now) || s.DecidedAt.After(e.now): // the first call, or the clock went back
		s.Since = e.now
		s.Added, s.AddedAt, s.GrewAt = e.starting, e.now, e.youngest
	default:
		s.Changes = record(s.Changes, change, e.p.longestPeriod())
		s = e.observeAdded(s, change.Delta)
	}
	if s.LastData.After(e.now) {
		s.LastData = e.now
	}
	s.Rollout = e.observeRollout(s.Rollout)
	s.Ended = e.ended(s)
	e.grewAt, e.ends = s.GrewAt, s.Ended
	if e.now.Sub(s.AddedAt) <= e.p.patience() {
		e.added = max(0, s.Added)
	}
	e.sinceLast, e.raised = e.now.Sub(s.DecidedAt), change.Delta > 0
	e.canProbe = e.carrying() > s.Probed || e.now.Sub(s.ProbedAt) >= e.p.credit() || s.ProbedAt.After(e.now)
	s.Replicas, s.Serving, s.DecidedAt = e.o.Replicas, e.serving, e.now
	return s
}

// observeAdded updates how many of the starting replicas were added: a replica that ends and
// is created again was not, and decides nothing for the others. Each one that begins to serve
// is taken for an added one, and each one that ends for a removed one.
func (e *engine) observeAdded(s State, delta int32) State {
	absent := s.Replicas - s.Serving // they are removed first
	if e.o.Ordered {
		absent = 0
	}
	if s.Added += delta; delta != 0 {
		s.AddedAt = e.now
	}
	if s.Added < 0 && delta < 0 {
		s.Added = min(0, delta+absent)
	}
	began := e.serving - s.Serving
	switch {
	case s.Added > 0:
		if e.youngest.After(s.GrewAt) {
			s.GrewAt = e.youngest
		}
		s.Added = min(max(0, s.Added-max(0, began)), e.starting)
	case s.Added < 0 && began < 0:
		s.Added = min(0, s.Added-began)
	}
	if age := e.now.Sub(s.AddedAt); age < 0 || age > e.p.credit() {
		s.Added = 0
	}
	return s
}

// ended returns State.Ended with the replicas that have ended since the last decision. One
// whose successor serves already is not in it: the successor is young.
func (e *engine) ended(s State) []Change {
	life := e.p.maxAge()
	for i := range e.o.Pods {
		for _, r := range e.o.Pods[i].Readings {
			life = max(life, r.MaxAge)
		}
	}
	for _, r := range e.o.Totals {
		life = max(life, r.MaxAge)
	}
	return record(s.Ended, Change{At: e.now, Delta: min(0, e.serving-s.Serving)}, life+warm)
}

// joined is what the signals want together.
type joined struct {
	want              int32 // the most that one of them wants
	asked             int32 // the most that the load asks one of them for; -1: not known
	unknown           bool  // the load may ask for more
	demand            int32 // by the deciding signal's values alone
	deciding          int   // the signal that wants it, and whose values ask for the most; -1: none does
	first, last       int   // the deciding signal's steps
	readable, missing int32 // signals; missing: those that hold
	standing          int32 // signals without a value whose fallback asks for replicas
	promised          bool  // the deciding signal has a plan of its own, with a window
	young             bool  // the record that its plan follows is short
	probing           bool  // a signal that wants the most asks for a probe
	drained           bool  // the deciding signal has just processed a backlog
}

// add joins signal i, whose steps are those from first to last.
func (j *joined) add(i int, o *outcome, first, last int) {
	switch {
	case o.readable:
		j.readable++
	case o.standsIn:
		j.standing++
	case o.ignored:
		return
	default:
		j.missing++
		return
	}
	j.asked, j.unknown = max(j.asked, o.asked), j.unknown || o.unknown
	switch {
	case j.deciding < 0 || o.replicas > j.want:
		j.want, j.probing = o.replicas, o.probing
	case o.replicas < j.want:
		return
	default:
		j.probing = j.probing || o.probing
		if o.demand <= j.demand {
			return
		}
	}
	j.demand, j.deciding, j.first, j.last = o.demand, i, first, last
	j.promised, j.young, j.drained = o.promised, o.young, o.drained
}

// demand evaluates every signal and takes the most that one of them wants.
func (e *engine) demand(s State) (int32, State) {
	n := len(e.p.Signals)
	signals := make([]SignalState, n)
	e.steps, e.inputs, e.deciding, e.asked = make([]Step, 0, n+1), make([]Input, 0, n), -1, -1
	var outcomes []outcome // for the formula
	for i := range e.p.Signals {
		var out outcome
		first := len(e.steps)
		out, signals[i], e.steps = e.evaluate(i, s.signal(i, e.p.Signals[i].Name), e.steps)
		e.inputs = append(e.inputs, out.input)
		e.add(i, &out, first, len(e.steps))
		if e.p.Formula != nil {
			outcomes = append(outcomes, out)
		}
	}
	s.Signals, e.ofSignals = signals, len(e.steps)
	cur := e.o.Replicas
	e.unknown = e.unknown || e.missing > 0
	switch {
	case e.readable+e.standing > 0:
	case cur > 0 && e.serving == 0:
		return e.step(RuleNotServing, cur, cur, facts.NotServing{Pending: facts.Pending{Starting: e.starting, Stuck: e.unschedulable + e.expired}}), s
	default:
		return e.fallback(cur, &s), s
	}
	if e.probing {
		s.ProbedAt, s.Probed = e.now, e.carrying()
	}
	if e.readable > 0 {
		s.LastData = e.now
	}
	if e.p.Formula == nil {
		e.inputs[e.deciding].Deciding, e.steps[e.first].MostOf = true, e.readable+e.standing
	} else if want, ok := e.combine(outcomes); ok {
		e.want, e.promised, e.young, e.drained = want, false, false, false
	} else {
		e.asked, e.unknown = -1, true
		return want, s
	}
	if e.missing > 0 && e.want < cur {
		return e.step(RuleMissing, e.want, cur, facts.Missing{}), s
	}
	want := e.apply(e.want, e.holdRollout(e.want))
	return e.apply(want, e.activate(want, &s)), s
}

// fallback holds while nothing can be read, then does what the policy says. It lowers nothing.
func (e *engine) fallback(cur int32, s *State) int32 {
	last := s.LastData
	if last.IsZero() {
		last = s.Since
	}
	silent := e.now.Sub(last)
	if silent < e.p.missingAfter() || e.p.Missing == MissingHold {
		return e.step(RuleMissing, cur, cur, facts.Missing{Wait: silent})
	}
	n := e.p.MissingFloor
	if e.p.Missing == MissingMax {
		n = e.p.ceiling()
	}
	return e.step(RuleFallback, cur, max(cur, n), facts.Fallback(silent))
}

// activate decides about zero. A workload leaves zero when a signal is above its
// activation, and goes to zero only when each signal that has one is readable and not
// above it, or its fallback ignores that.
func (e *engine) activate(want int32, s *State) ruling {
	if e.p.Min > 0 {
		s.ActiveAt = time.Time{}
		return ruling{}
	}
	active, known, unknown := e.activations()
	s.isActive(active || unknown && e.isBlind(s), e.now)
	if active {
		e.asked = max(e.asked, 1)
	}
	atZero := e.o.Replicas == 0
	switch mayEnd := known && (atZero || !unknown); {
	case active && want < 1, !mayEnd && want < 1 && !atZero:
		return ruling{RuleActivation, 1, facts.Active{}}
	case !active && mayEnd && want <= 1 && !atZero && e.waitsForZero(s) > 0:
		return ruling{RuleActivation, 1, facts.Inactive{Wait: e.waitsForZero(s), Window: e.p.Down.ToZero}}
	case !active && mayEnd && want <= 1:
		e.asked = 0
		return ruling{RuleActivation, 0, facts.Inactive{}}
	}
	return ruling{}
}

// activations says of the signals with an activation whether one is above it, whether one can
// be read, and whether one cannot.
func (e *engine) activations() (active, known, unknown bool) {
	for i := range e.p.Signals {
		switch a, t := e.p.Signals[i].Activation, e.o.total(i); {
		case a == nil:
		case !t.fresh(e.now, e.p.maxAge()):
			unknown = unknown || e.p.Signals[i].Fallback.Mode != FallbackIgnore
		default:
			known = true
			active = active || t.Value > *a
		}
	}
	return active, known, unknown
}

// rule is the rule that made the decision: that of the last step that changed
// the number, else of the last step. The steps of signals that do not decide do
// not count.
func (e *engine) rule() Rule {
	steps := [...][]Step{e.steps[e.ofSignals:], e.steps[e.first:e.last]}
	for _, part := range steps {
		for _, s := range slices.Backward(part) {
			if s.Before != s.After {
				return s.Rule
			}
		}
	}
	for _, part := range steps {
		if n := len(part); n > 0 {
			return part[n-1].Rule
		}
	}
	return RuleDemand
}

// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/facts"
	"github.com/gpupilot/gpupilot/internal/scale/promise"
	"github.com/gpupilot/gpupilot/internal/scale/trend"
)

// view is what all signals of one decision see of the workload. None of them
// changes it.
type view struct {
	p   *Policy
	o   *Observation
	now time.Time
	census

	sinceLast time.Duration // since the last decision
	raised    bool          // others, or the last decision, have raised the replicas since
	ends      []Change      // State.Ended
	added     int32         // starting replicas that were added, and do not replace others
	grewAt    time.Time     // when one of them last began to serve
	canProbe  bool          // no probe is under way for the replicas that serve
	rollout   Rollout
	reduced   bool  // a rollout lets fewer replicas serve, or did so a moment ago
	rolled    int32 // RolloutState.Replicas
}

// base is the capacity that serves or soon will. Pods beyond spec.replicas are
// about to stop, and holding the capacity must not ask for them again. Replicas that a
// rollout replaces are no less capacity if their successors are stuck: were they not
// asked for, the rollout would take others.
func (v *view) base() int32 {
	if v.rollout.InProgress {
		return v.o.Replicas
	}
	return min(v.serving+v.starting, v.o.Replicas)
}

// unchanged is the number within the tolerance: the base, and what is needed if others would be
// removed than the replicas that are stuck.
func (v *view) unchanged(needed int32) int32 {
	if v.unschedulable == 0 && !v.o.Ordered {
		return v.base()
	}
	return max(v.base(), min(needed, v.o.Replicas))
}

// replaced is how many replicas are starting in place of others, unless a rollout replaces them.
func (v *view) replaced() int32 {
	if v.rollout.InProgress {
		return 0
	}
	return max(0, min(v.starting, v.o.Replicas-v.serving)-v.added)
}

// outcome is what one signal contributes to a decision.
type outcome struct {
	readable bool    // false: it contributes its input only, and what its fallback says
	standsIn bool    // its fallback asks for replicas
	ignored  bool    // its fallback lets others decide
	promised bool    // its plan has its own window
	young    bool    // its plan follows a short record
	demand   int32   // replicas that its values ask for, before any rule
	mean     float64 // demand before rounding
	asked    int32   // that the load asks for, whatever a rule keeps
	unknown  bool    // a replica's value is missing, and the load may ask for more
	replicas int32   // wanted
	probing  bool    // it is at its ceiling, and asks for a probe
	raised   bool    // by a forecast or a probe, above the base
	drained  bool    // the backlog of a saturation has just been processed
	input    Input
}

// evaluate turns the readings of signal i, with the signal's own state, into
// the replicas that it wants. It is pure: it returns the signal's next state,
// and steps with its own steps appended. No other signal influences the result.
func (v *view) evaluate(i int, before SignalState, steps []Step) (outcome, SignalState, []Step) {
	e := evaluation{view: v, i: i, signal: &v.p.Signals[i], state: before, steps: steps}
	out := e.run()
	return out, e.state, e.steps
}

// evaluation is the evaluation of one signal on its way through the rules.
type evaluation struct {
	*view
	i      int       // index of the signal
	oldest time.Time // the oldest valid reading; zero: none
	signal *Signal
	state  SignalState
	takes  capacity // of a replica
	facts  *facts.Demand
	steps  []Step
}

// step records that a rule turned before into after, and returns after.
func (e *evaluation) step(r Rule, before, after int32, f facts.Facts) int32 {
	e.steps = append(e.steps, Step{Rule: r, Signal: e.signal.Name, Before: before, After: after, Facts: f})
	return after
}

func (e *evaluation) run() outcome {
	for k := range e.o.Pods {
		if r := e.o.Pods[k].reading(e.i); e.view.isValid(&e.o.Pods[k], r) && (e.oldest.IsZero() || r.At.Before(e.oldest)) {
			e.oldest = r.At
		}
	}
	e.learn()
	e.takes = capacityOf(e.signal, &e.state)
	m, age, ok := e.measure()
	out := outcome{readable: ok, input: Input{
		Signal: e.signal.Name, Unit: e.signal.Unit, Value: m.value, Target: e.takes.target, Fresh: m.fresh, Age: age, Silent: m.silent,
	}}
	if !ok {
		e.state.Level, e.state.Quick, e.state.Trend = trend.Level{}, trend.Level{}, trend.Trend{}
		e.standIn(&out)
		return out
	}
	e.state.SilentSince = time.Time{}
	if planned, d, ok := e.keepPromise(m); ok {
		e.explainPromise(planned, d)
		out.promised, out.young, out.demand, out.mean, out.asked = true, d.Young, planned.replicas(e.o.Replicas), trend.Finite(d.Replicas), facts.Replicas(d.Replicas)
		out.replicas, out.unknown = e.partial(e.step(RuleDemand, e.o.Replicas, out.demand, e.facts), planned)
		return out
	}
	asked := m.up
	most, limited := e.limitBacklog(m)
	if limited {
		m = m.limitTo(most)
	}
	m, a := e.raiseToArrivals(m)
	demand := m.up
	m = e.smooth(m)
	if limited = limited && !a.raised; limited {
		m = m.limitTo(most)
	}
	e.explain(m, demand, a)
	if e.facts.Held = limited && asked > most; e.facts.Held {
		e.facts.Demand = trend.Finite(asked)
	}
	if e.isMeasuring() {
		cur := e.o.Replicas
		out.promised, out.demand, out.mean, out.asked, out.unknown = true, cur, float64(cur), -1, true
		out.replicas = e.step(RuleSettling, cur, cur, facts.Measuring{})
		return out
	}
	out.demand, out.mean, out.asked = m.replicas(e.o.Replicas), e.facts.Mean, e.asked(m)
	now, unknown := e.demand(out.demand, m)
	want := e.forecast(now, m)
	if out.unknown = unknown; want > now {
		out.asked, out.raised = max(out.asked, want), want > e.base()
	}
	since := e.state.SaturatedSince
	grew := !since.IsZero() && e.grewAt.After(since) // a part of what is seen may be a backlog
	if e.predatesRebalance(e.grewAt) {
		out.replicas, out.raised = e.settle(want), false
		if grew {
			out.asked = min(out.asked, e.serving)
		}
		return out
	}
	if until := e.noteSaturation(m); until.After(e.now) {
		// The signal asks for what the value says, as the HorizontalPodAutoscaler does: to wait
		// until the backlog is processed would make each step of a long rise later. But no window
		// remembers it.
		out.replicas, out.asked = want, min(out.asked, e.serving)
		return out
	}
	out.drained = grew && e.state.SaturatedSince.IsZero()
	out.replicas, out.probing = e.handleCeiling(want, m)
	out.raised = (out.raised || out.probing && out.replicas > want) && out.replicas > e.base()
	return out
}

// explain collects the facts of the signal's steps: demand is m.up before it
// was averaged.
func (e *evaluation) explain(m measure, demand float64, a arrivals) {
	sig := e.signal
	e.facts = &facts.Demand{
		Reading: e.reading(m), Target: e.takes.target, TargetLearned: e.takes.learned,
		Total: sig.Type == Value || m.of == 0, Whole: sig.Type == Value, Fresh: m.fresh, Replaced: e.replaced(),
		Outlier:  facts.Outlier{Name: m.outlier, Value: trend.Finite(m.outlierValue), Limit: trend.Finite(m.outlierLimit)},
		Averaged: facts.Replicas(m.up) != facts.Replicas(demand), Demand: trend.Finite(demand), Mean: trend.Finite(m.up),
	}
	if m.lacking {
		e.facts.Earlier = trend.Finite(m.down)
	}
	if e.facts.Averaged {
		e.facts.Window = sig.averagedOver()
	}
	if sig.Law == Batching && m.of > 0 {
		e.facts.Batch = &facts.Batch{
			Load: trend.Finite(e.takes.load(m.value)), Arrivals: a.rate, Capacity: trend.Finite(a.capacity), LearnedFrom: a.learned,
			Arriving: a.raised, Limited: a.limited,
		}
	}
}

// explainPromise collects the facts of a signal whose plan decides.
func (e *evaluation) explainPromise(m measure, d promise.Demand) {
	e.facts = &facts.Demand{
		Reading: e.reading(m), Target: e.takes.target, TargetLearned: e.takes.learned,
		Fresh: m.fresh, Replaced: e.replaced(), Demand: trend.Finite(d.Replicas), Mean: trend.Finite(d.Replicas),
		Plan: &facts.Plan{
			Objective: e.signal.Objective, Limits: promise.Limits{Token: e.signal.Limit, FirstToken: e.signal.FirstLimit}, Busy: trend.Finite(d.Busy), Caches: d.Caches, BusyTarget: d.Target, Missed: d.Missed,
			Window: time.Duration(d.Window) * time.Second, Highest: trend.Finite(d.Highest), Reserve: trend.Finite(d.Reserve),
		},
	}
}

func (e *evaluation) reading(m measure) facts.Reading {
	return facts.Reading{Serving: e.serving, Value: m.value, Unit: e.signal.Unit}
}

// demand applies the policy's tolerance to what the values ask for.
func (e *evaluation) demand(asked int32, m measure) (want int32, unknown bool) {
	base := e.base()
	want = e.step(RuleDemand, e.o.Replicas, asked, e.facts)
	x := m.down
	if m.up > float64(base) {
		x = m.up
	}
	if t, within := e.tolerated(x, base); within && want != base {
		want = e.step(RuleTolerance, want, e.unchanged(want), facts.Tolerance(t))
	}
	return e.partial(want, m)
}

// asked is what the load asks for, if replicas without a value carry as much as the others.
func (e *evaluation) asked(m measure) int32 {
	x := max(m.up, m.whole)
	if _, within := e.tolerated(x, e.base()); within {
		return e.unchanged(facts.Replicas(x))
	}
	return facts.Replicas(x)
}

// partial counts a replica without a reading as one at its ceiling, or at twice its target,
// and allows no scale-down if more than one of sickOf has none: they may carry any load. The HPA
// counts such a replica at its target when it scales down. With a load that is not spread
// evenly, that removes replicas that are needed: after an update that renames the metric,
// the busy replicas are those without it.
func (e *evaluation) partial(want int32, m measure) (_ int32, unknown bool) {
	least := e.o.Replicas
	if unknown = m.silent*sickOf > m.of || !m.isCovered(); !unknown {
		least = min(least, facts.Replicas(m.down+m.sick))
	}
	if want >= least || !unknown && m.silent == 0 {
		return want, false
	}
	return e.step(RulePartial, want, least, facts.Partial{Fresh: m.fresh, Serving: e.serving, Without: m.without}), unknown
}

// tolerated reports whether a demand of x replicas is close enough to base to change
// nothing, and within which relative deviation.
func (e *evaluation) tolerated(x float64, base int32) (float64, bool) {
	b := float64(base)
	if x > b {
		t := e.p.upTolerance(e.signal)
		return t, x <= b*(1+t)
	}
	t := e.p.downTolerance()
	return t, x >= b*(1-t) && b > 0
}

// settle adds no replica, and removes none of the base, while a replica that was added has only
// just begun to serve, and readings may be from before the load was spread over it.
func (e *evaluation) settle(want int32) int32 {
	kept := min(max(want, e.base()), e.o.Replicas)
	if want == kept {
		return want
	}
	return e.step(RuleSettling, want, kept, facts.Settling{})
}

// handleCeiling handles a signal at its ceiling, which no longer shows how much
// load there is. It waits for capacity that is starting, else it asks for a
// probe: once for each number of serving replicas.
func (e *evaluation) handleCeiling(want int32, m measure) (_ int32, probing bool) {
	awaited := facts.Awaited{Reading: e.reading(m), Pending: facts.Pending{Starting: e.starting, Wait: e.wait}}
	switch {
	case !e.isSaturated(m):
		return want, false
	case e.starting > 0 && e.now.Sub(e.state.SaturatedSince) < e.p.patience():
		return e.step(RuleStarting, want, max(want, e.o.Replicas), awaited), false
	case e.reduced:
		return e.step(RuleRollout, want, max(want, e.base()), facts.Reduced{Reading: awaited.Reading}), false
	case !e.canProbe: // the replicas of the last probe do not serve yet
		if want >= e.o.Replicas {
			return want, false
		}
		awaited.Stuck = e.unschedulable + e.expired
		return e.step(RuleStarting, want, e.o.Replicas, awaited), false
	case m.fresh < m.of-m.young:
		return max(want, e.o.Replicas), false // a replica without a reading may be idle
	}
	growth := min(probeGrowth, probeLimit*m.value/e.signal.Target)
	probe := int32(min(float64(e.carrying())*growth, math.MaxInt32/2))
	if probe <= want {
		return want, true
	}
	return e.step(RuleSaturated, want, probe, facts.Saturated{Reading: awaited.Reading}), true
}

// isSaturated reports whether the signal is at its ceiling.
func (e *evaluation) isSaturated(m measure) bool {
	return e.signal.Ceiling > 0 && e.signal.Type == AverageValue && m.value >= saturation*e.signal.Ceiling && m.isCovered()
}

// noteSaturation updates since when the signal is at its ceiling. It returns
// until when the replica that was added and began to serve last may be
// processing the backlog: a time in the past if there was none.
func (e *evaluation) noteSaturation(m measure) (until time.Time) {
	s := &e.state
	if s.SaturatedSince.After(e.now) { // the clock went back
		s.SaturatedSince = time.Time{}
	}
	since := s.SaturatedSince
	if !since.IsZero() && e.grewAt.After(since) {
		backlog := time.Duration(drainShare * float64(e.grewAt.Sub(since)))
		until = e.grewAt.Add(min(backlog, drainLimit))
	}
	switch saturated := e.isSaturated(m); {
	case saturated && since.IsZero():
		s.SaturatedSince = e.now
	case !saturated && !until.After(e.now):
		s.SaturatedSince = time.Time{}
	}
	return until
}

// predatesRebalance reports whether a valid reading of the signal was measured
// before the load had spread over the replicas that serve since the time at. It
// is false once these readings have newer values or are too old.
func (e *evaluation) predatesRebalance(at time.Time) bool {
	return !at.IsZero() && !at.After(e.now) && !e.oldest.IsZero() && e.oldest.Before(at.Add(warm))
}

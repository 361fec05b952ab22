// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
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
	shrankAt  time.Time     // when the number of serving replicas last fell
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

// outcome is what one signal contributes to a decision.
type outcome struct {
	readable bool    // false: it contributes its input only, and what its fallback says
	standsIn bool    // its fallback asks for replicas
	ignored  bool    // its fallback lets others decide
	promised bool    // its plan has its own window
	demand   int32   // replicas that its values ask for, before any rule
	mean     float64 // demand before rounding
	replicas int32   // wanted
	settling bool    // its readings may predate the last fall of the serving replicas, and ask for less than base
	probing  bool    // it is at its ceiling, and asks for a probe
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
	i      int // index of the signal
	signal *Signal
	state  SignalState
	takes  capacity // of a replica
	facts  Facts    // of the signal's steps
	steps  []Step
}

// step records that a rule turned before into after, and returns after.
func (e *evaluation) step(r Rule, before, after int32, f Facts) int32 {
	e.steps = append(e.steps, Step{Rule: r, Before: before, After: after, Facts: f})
	return after
}

func (e *evaluation) run() outcome {
	e.learn()
	e.takes = capacityOf(e.signal, &e.state)
	m, age, ok := e.measure()
	out := outcome{readable: ok, input: Input{
		Signal: e.signal.Name, Unit: e.signal.Unit, Value: m.value, Target: e.takes.target, Fresh: m.fresh, Age: age, Silent: m.silent,
	}}
	if !ok {
		e.state.Level, e.state.Trend = trend.Level{}, trend.Trend{}
		e.standIn(&out)
		return out
	}
	e.state.SilentSince = time.Time{}
	if planned, d, ok := e.keepPromise(m); ok {
		e.explainPromise(planned, d)
		out.promised, out.demand, out.mean = true, planned.replicas(e.base()), printable(d.Replicas)
		out.replicas = e.partial(e.step(RuleDemand, e.o.Replicas, out.demand, e.facts), planned)
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
		e.facts.Demand = printable(asked)
	}
	if e.isMeasuring() {
		out.promised, out.demand, out.mean = true, e.base(), float64(e.base())
		out.replicas = e.step(RuleSettling, e.o.Replicas, e.base(), Facts{Signal: e.signal.Name, Planned: true})
		return out
	}
	out.demand, out.mean = m.replicas(e.base()), e.facts.Mean
	want := e.forecast(e.demand(out.demand, m), m)
	if e.predatesRebalance(e.youngest) {
		out.replicas = e.settle(want)
		return out
	}
	out.settling = want < e.base() && e.predatesRebalance(e.shrankAt)
	out.replicas, out.probing = e.handleCeiling(want, m)
	return out
}

// measure is the demand of one signal before any rule, in fractions of
// replicas. Replicas without a reading count as idle in up, and as full in down.
type measure struct {
	up, down float64
	whole    float64 // up, if replicas without a reading carry as much as the others
	value    float64 // mean per replica, or the total
	fresh    int32   // replicas with a reading, or 1 for a total
	silent   int32   // replicas that should have a reading, and have none
	of       int32   // serving replicas; 0: value is a total

	silentTokens int32 // as silent, of tokens

	without, withoutTokens string // the first one's name
}

// measure reads the signal from the workload's total or from the serving
// replicas. ok is false if neither has a valid reading.
func (e *evaluation) measure() (m measure, age time.Duration, ok bool) {
	sig := e.signal
	if t := e.o.total(e.i); t.fresh(e.now, e.p.maxAge()) && t.Value >= 0 {
		m.value, m.fresh = t.Value, 1
		m.up = t.Value / sig.Target
		m.down = m.up
		if sig.Type == Value {
			m.up, m.down = e.scaleByTotal(m.up)
		}
		return m, max(0, e.now.Sub(t.At)), true
	}
	m.of = e.serving
	sum, most := 0.0, 0.0
	for k := range e.o.Pods {
		pod := &e.o.Pods[k]
		r := pod.reading(e.i)
		if !e.isValid(pod, r) {
			e.noteSilent(pod, &m.silent, &m.without)
			continue
		}
		sum, most = sum+r.Value, max(most, r.Value)
		m.fresh++
		age = max(age, e.now.Sub(r.At))
	}
	if m.fresh == 0 || math.IsInf(sum, 0) {
		m.fresh = 0
		return m, 0, false
	}
	m.value = sum / float64(m.fresh)
	if sig.Type == AverageValue {
		load, unread := e.takes.load(m.value), float64(m.of-m.fresh)
		m.up = float64(m.fresh) * load
		m.down = m.up + unread*max(load, 1)
		m.whole = m.up + unread*load
		return m, age, true
	}
	switch sig.Aggregate {
	case gpu.Sum:
		m.value = sum
	case gpu.Max:
		m.value = most
	}
	if sig.Aggregate == gpu.Sum {
		m.up, m.down = e.scaleByTotal(m.value / sig.Target)
		return m, age, true
	}
	m.up = float64(e.serving) * m.value / sig.Target
	m.down = m.up
	return m, age, true
}

// noteSilent counts a replica that has served for so long that it should have a valid
// reading, and keeps the first name in the order of the alphabet.
func (v *view) noteSilent(pod *Replica, n *int32, first *string) {
	if pod.Phase != Serving || v.now.Sub(pod.Since) <= warm+v.p.maxAge() {
		return
	}
	if *n++; *n == 1 || pod.Name < *first {
		*first = pod.Name
	}
}

// isValid reports whether a reading counts: it is fresh, its replica serves, it
// was measured after the replica had warmed up, and it is not negative. A
// negative value is invalid, not an idle replica.
func (v *view) isValid(pod *Replica, r Reading) bool {
	return pod.Phase == Serving && r.fresh(v.now, v.p.maxAge()) && r.Value >= 0 && !r.At.Before(pod.Since.Add(warm))
}

// smooth averages the noise out of the demand, unless the policy has no
// stabilisation window downward.
func (e *evaluation) smooth(m measure) measure {
	if e.p.Down.Window == 0 {
		e.state.Level = trend.Level{}
		return m
	}
	// A reading that is missing once does not change the demand: whole is averaged.
	whole := min(max(m.up, m.whole), trend.Most)
	e.state.Level = e.state.Level.Next(whole, e.now, e.signal.averagedOver())
	level := e.state.Level.Value
	current := m.down
	m.down = max(0, m.down+level-whole)
	if e.p.DownWindow() < levelSettles*e.signal.averagedOver() { // which does not wait until an average has risen
		m.down = max(m.down, current)
	}
	m.up = max(0, min(m.up, whole)+level-whole)
	return m
}

// explain collects the facts of the signal's steps: demand is m.up before it
// was averaged.
func (e *evaluation) explain(m measure, demand float64, a arrivals) {
	sig := e.signal
	e.facts = Facts{
		Signal: sig.Name, Unit: sig.Unit, Value: m.value, Target: e.takes.target,
		Total: sig.Type == Value || m.of == 0, Whole: sig.Type == Value,
		Serving: e.serving, Fresh: m.fresh, Coming: e.starting, Learned: e.takes.learned,
		Averaged: replicas(m.up) != replicas(demand), Demand: printable(demand), Mean: printable(m.up),
	}
	if e.facts.Averaged {
		e.facts.Window = sig.averagedOver()
	}
	if sig.Law == Batching && m.of > 0 {
		f := &e.facts
		f.Batching, f.Load = true, printable(e.takes.load(m.value))
		f.Arrivals, f.Capacity, f.LearnedFrom = a.rate, printable(a.capacity), a.learned
		f.Arriving, f.Limited = a.raised, a.limited
	}
}

// explainPromise collects the facts of a signal whose plan decides.
func (e *evaluation) explainPromise(m measure, d promise.Demand) {
	e.facts = Facts{
		Signal: e.signal.Name, Unit: e.signal.Unit, Value: m.value, Target: e.takes.target, Learned: e.takes.learned,
		Serving: e.serving, Fresh: m.fresh, Coming: e.starting, Demand: printable(d.Replicas), Mean: printable(d.Replicas),
		Planned: true, Objective: e.signal.Objective, Busy: printable(d.Busy), BusyTarget: d.Target,
		Window: time.Duration(d.Window) * time.Second, Highest: printable(d.Highest), Reserve: printable(d.Reserve),
		Missed: d.Missed,
	}
}

// printable is x within what JSON can encode.
func printable(x float64) float64 {
	if math.IsNaN(x) {
		return 0
	}
	return min(x, trend.Most)
}

// demand applies the policy's tolerance to what the values ask for.
func (e *evaluation) demand(asked int32, m measure) int32 {
	base := e.base()
	want := e.step(RuleDemand, e.o.Replicas, asked, e.facts)
	if t, within := e.tolerated(m, base); within && want != base {
		e.facts.Tolerance = t
		want = e.step(RuleTolerance, want, base, e.facts)
	}
	return e.partial(want, m)
}

// partial keeps the base while a replica has no reading: it may carry any load. The HPA
// counts such a replica at its target when it scales down. With a load that is not spread
// evenly, that removes replicas that are needed: after an update that renames the metric,
// the busy replicas are those without it.
func (e *evaluation) partial(want int32, m measure) int32 {
	if base := e.base(); want < base && (m.silent > 0 || !m.isCovered()) {
		facts := e.facts
		facts.Without = m.without
		return e.step(RulePartial, want, base, facts)
	}
	return want
}

// replicas is more than base if the measured load alone needs more, and less
// than base if less is enough even with every replica without a reading full.
func (m *measure) replicas(base int32) int32 {
	if up := replicas(m.up); up >= base {
		return up
	}
	return min(replicas(m.down), base)
}

// isCovered reports whether enough replicas have a reading.
func (m *measure) isCovered() bool { return float64(m.fresh) >= coverage*float64(m.of) }

// tolerated reports whether the measure is close enough to base to change
// nothing, and within which relative deviation.
func (e *evaluation) tolerated(m measure, base int32) (float64, bool) {
	if base == 0 {
		return 0, false
	}
	b := float64(base)
	if m.up > b {
		t := e.p.upTolerance(e.signal)
		return t, m.up <= b*(1+t)
	}
	t := e.p.downTolerance()
	return t, m.down <= b && m.down >= b*(1-t)
}

// settle keeps the base while a replica has only just begun to serve, and
// readings may be from before the load was spread over it.
func (e *evaluation) settle(want int32) int32 {
	base := e.base()
	if want == base {
		return base
	}
	return e.step(RuleSettling, want, base, e.facts)
}

// handleCeiling handles a signal at its ceiling, which no longer shows how much
// load there is. It waits for capacity that is starting, else it asks for a
// probe: once for each number of serving replicas. It also keeps the base while
// new replicas still process the backlog of the saturation.
func (e *evaluation) handleCeiling(want int32, m measure) (_ int32, probing bool) {
	base, facts := e.base(), e.facts
	saturated := e.signal.Ceiling > 0 && e.signal.Type == AverageValue && m.value >= saturation*e.signal.Ceiling && m.isCovered()
	drained := e.state.noteSaturation(saturated, e.youngest, e.now)
	switch wait := drained.Sub(e.now); {
	case wait > 0 && want <= base:
		return want, false
	case wait > 0:
		facts.Wait = wait
		return e.step(RuleDraining, want, base, facts), false
	case !saturated:
		return want, false
	case e.starting > 0:
		facts.Wait = e.wait
		return e.step(RuleStarting, want, max(want, base), facts), false
	case e.reduced:
		return e.step(RuleRollout, want, max(want, base), facts), false
	case !e.canProbe:
		return max(want, base), false // the replicas of the last probe do not serve yet
	case m.fresh < m.of:
		return max(want, base), false // a replica without a reading may be idle
	}
	growth := min(probeGrowth, probeLimit*m.value/e.signal.Target)
	probe := int32(min(float64(e.carrying())*growth, math.MaxInt32/2))
	if probe <= want {
		return want, true
	}
	return e.step(RuleSaturated, want, probe, facts), true
}

// noteSaturation updates since when the signal is at its ceiling. It returns
// until when the replica that began to serve last, at youngest, may be
// processing the backlog: a time in the past if there was none.
func (s *SignalState) noteSaturation(saturated bool, youngest, now time.Time) (drained time.Time) {
	if s.SaturatedSince.After(now) { // the clock went back
		s.SaturatedSince = time.Time{}
	}
	if !s.SaturatedSince.IsZero() && youngest.After(s.SaturatedSince) {
		backlog := time.Duration(drainShare * float64(youngest.Sub(s.SaturatedSince)))
		drained = youngest.Add(min(backlog, drainLimit))
	}
	switch {
	case saturated && s.SaturatedSince.IsZero():
		s.SaturatedSince = now
	case !saturated && !drained.After(now):
		s.SaturatedSince = time.Time{}
	}
	return drained
}

// predatesRebalance reports whether a valid reading of the signal was measured
// before the load had spread over the replicas that serve since the time at. It
// is false once these readings have newer values or are too old.
func (e *evaluation) predatesRebalance(at time.Time) bool {
	if at.IsZero() || at.After(e.now) {
		return false
	}
	for k := range e.o.Pods {
		p := &e.o.Pods[k]
		if r := p.reading(e.i); e.isValid(p, r) && r.At.Before(at.Add(warm)) {
			return true
		}
	}
	return false
}

// replicas rounds up, ignoring the rounding error of a division.
func replicas(x float64) int32 {
	const most = math.MaxInt32 / 2
	if x > most || math.IsNaN(x) {
		return most
	}
	return int32(max(0, math.Ceil(x-1e-9)))
}

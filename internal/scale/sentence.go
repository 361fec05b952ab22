// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/words"
)

// Sentence describes the step for a person on call. Status, events, the web page
// and the CLI show it.
func (s Step) Sentence() string {
	f := s.Facts
	switch s.Rule {
	case RuleDemand:
		return s.demand()
	case RuleTolerance:
		return fmt.Sprintf("%s is within %s of its target: no change from %d", f.Signal, words.Percent(f.Tolerance), s.After)
	case RuleForecast:
		return fmt.Sprintf("%s is forecast to need %s replicas in %s, when a new replica serves: %d", f.Signal, words.Quantity(f.Value, ""), words.Duration(f.Wait), s.After)
	case RuleSaturated:
		return fmt.Sprintf("%d serving at %s (saturated, the load may be higher): probe with %d", f.Serving, words.Quantity(f.Value, f.Unit), s.After)
	case RuleStarting:
		return s.starting()
	case RuleSettling:
		if f.Planned {
			return fmt.Sprintf("%s: the cost of a token is measured for a few seconds: keep %d", f.Signal, s.After)
		}
		return fmt.Sprintf("the number of serving replicas has just changed: keep %d instead of %d until the load has spread", s.After, s.Before)
	case RuleDraining:
		return fmt.Sprintf("new replicas still process the backlog of the saturation: keep %d instead of %d for %s", s.After, s.Before, words.Duration(f.Wait))
	case RuleNotServing:
		return fmt.Sprintf("no replica serves yet, %s: keep %d", startingReplicas(f), s.After)
	case RulePartial:
		without := ""
		if f.Without != "" {
			without = fmt.Sprintf(" (%s has none)", f.Without)
		}
		return fmt.Sprintf("only %d of %d serving replicas have a fresh value of %s%s: not below %d", f.Fresh, f.Serving, f.Signal, without, s.After)
	case RuleMissing:
		return s.missing()
	case RuleFormula:
		return s.formula()
	case RuleRollout:
		return s.rollout()
	case RuleFallback:
		if f.Signal != "" {
			return s.signalFallback()
		}
		return fmt.Sprintf("no signal has had a value for %s: missingData sets at least %d", words.Duration(f.Wait), s.After)
	case RuleActivation:
		return s.activation()
	case RuleStabilization:
		return s.stabilization()
	case RuleRate:
		return fmt.Sprintf("behavior allows %d within %s: %d instead of %d", f.Limit, words.Duration(f.Window), s.After, s.Before)
	case RuleDescent:
		return fmt.Sprintf("scale-down is limited to 20 %% of the replicas, at least one, per %s: %d instead of %d", words.Duration(f.Window), s.After, s.Before)
	case RuleBounds:
		name := "maxReplicas"
		if f.Down {
			name = "minReplicas"
		}
		return fmt.Sprintf("%s is %d: %d instead of %d", name, f.Limit, s.After, s.Before)
	case RuleBudget:
		return fmt.Sprintf("the budget is %d GPUs: %d instead of %d", f.Limit, s.After, s.Before)
	case RuleDisabled:
		return fmt.Sprintf("scaling %s is disabled: %d instead of %d", words.UpOrDown(f.Down), s.After, s.Before)
	case RulePair:
		if f.Failed != "" {
			return fmt.Sprintf("what its pair %s wants is %s: keep %d instead of %d", f.By, f.Failed, s.After, s.Before)
		}
		return fmt.Sprintf("its pair %s wants %s, %s for each: %d instead of %d", f.By, words.Quantity(f.Value, ""), words.Quantity(f.Target, ""), s.After, s.Before)
	case RuleIdle:
		return fmt.Sprintf("no GPU was active and no request in flight for %s: %d instead of %d until somebody uses it", words.Duration(f.Wait), s.After, s.Before)
	case RuleOverride, RuleSchedule:
		return fmt.Sprintf("%s: %d instead of %d", f.By, s.After, s.Before)
	case RuleDrain:
		return s.drain()
	case RuleDisruption:
		if f.By == "" {
			return fmt.Sprintf("PodDisruptionBudgets cannot be read, and unknown is not allowed: keep %d instead of %d", s.After, s.Before)
		}
		return fmt.Sprintf("PodDisruptionBudget %s does not allow it now: keep %d instead of %d", f.By, s.After, s.Before)
	case RuleSetToZero:
		return fmt.Sprintf("the replicas were set to 0, and not by this controller: 0 instead of %d until they are set to 1 or more", s.Before)
	}
	return fmt.Sprintf("%s: %d to %d", s.Rule, s.Before, s.After)
}

// Sentence describes the decision in one line: the sentences of its steps.
func (d *Decision) Sentence() string {
	parts := make([]string, 0, len(d.Steps))
	for _, s := range d.Steps {
		parts = append(parts, s.Sentence())
	}
	return strings.Join(parts, "; ")
}

// Why says in one sentence what set the number of replicas: that of the step that made the decision.
func (d *Decision) Why() string {
	deciding, why := "", -1
	for _, in := range d.Inputs {
		if in.Deciding {
			deciding = in.Signal
		}
	}
	for i, s := range d.Steps {
		if s.Rule == d.Rule && (why < 0 || s.Facts.Signal == "" || s.Facts.Signal == deciding) {
			why = i
		}
	}
	if why < 0 {
		return d.Sentence()
	}
	return d.Steps[why].Sentence()
}

// demand is the equation that turns a signal's value into replicas: the numbers,
// the result, and whether this signal decides.
func (s Step) demand() string {
	f := s.Facts
	out := f.Signal + ": "
	switch {
	case f.Planned:
		out += s.plan()
	case f.Arriving:
		out += fmt.Sprintf("%s requests/s ÷ %s per replica", words.Rate(f.Arrivals), words.Rate(f.Capacity))
	case f.Batching:
		out += fmt.Sprintf("%s × %s of capacity", serving(f), words.Percent(f.Load))
	case f.Whole:
		out += fmt.Sprintf("%d serving × %s ÷ target %s", f.Serving, words.Quantity(f.Value, f.Unit), words.Quantity(f.Target, f.Unit))
	case f.Total:
		out += fmt.Sprintf("%s ÷ target %s per replica", words.Quantity(f.Value, f.Unit), words.Quantity(f.Target, f.Unit))
	default:
		out += fmt.Sprintf("%s × %s ÷ target %s", serving(f), words.Quantity(f.Value, f.Unit), words.Quantity(f.Target, f.Unit))
	}
	out += s.result()
	if f.Planned {
		if why := f.Missed.Sentence(); why != "" {
			out += "; " + why
		}
	}
	if f.Batching {
		out += s.batch()
	}
	if f.Outlier != "" {
		out += fmt.Sprintf(", %s with %s counted as %s", f.Outlier, words.Quantity(f.OutlierValue, f.Unit), words.Quantity(f.OutlierLimit, f.Unit))
	}
	if f.MostOf > 1 {
		out += fmt.Sprintf(", the most of %d signals", f.MostOf)
	}
	if f.MostOf > 0 && f.Replaced > 0 {
		out += "; " + words.Replaced(f.Replaced, s.Before)
	}
	return out
}

// plan is the load in busy replicas, and what the plan of an objective makes of it.
func (s Step) plan() string {
	f := s.Facts
	out := fmt.Sprintf("the load keeps %s replicas busy", words.Quantity(f.Busy, ""))
	if f.Highest > f.Busy {
		out += fmt.Sprintf(", at most %s within %s", words.Quantity(f.Highest, ""), words.Minutes(f.Window))
	}
	if f.Reserve > f.Highest {
		out += fmt.Sprintf(", a reserve is kept for %s", words.Quantity(f.Reserve, ""))
	}
	return out + fmt.Sprintf("; %s within the limits take replicas that are busy to %s", words.Share(f.Objective), words.Percent(f.BusyTarget))
}

// serving is the number of replicas that Value is the mean of.
func serving(f Facts) string {
	if f.Fresh < f.Serving {
		return fmt.Sprintf("%d of %d serving", f.Fresh, f.Serving)
	}
	return fmt.Sprintf("%d serving", f.Serving)
}

// result is the right side of the equation, in whole replicas. If these are not
// the next whole number, it gives the reason.
func (s Step) result() string {
	f := s.Facts
	why := ""
	switch asked := fmt.Sprintf(" = %s, ", words.Quantity(f.Demand, "")); {
	case f.Held:
		why = asked + "limited while a rollout lets fewer replicas serve"
	case f.Limited && f.Arriving:
		why = ", limited to twice the demand of the requests in flight"
		if f.Averaged {
			why += fmt.Sprintf(", %s on average over %s", words.Quantity(f.Mean, ""), words.Duration(f.Window))
		}
	case f.Averaged:
		why = asked + words.Quantity(f.Mean, "") + " on average over " + words.Duration(f.Window)
	case s.After > replicas(f.Demand) && s.After <= replicas(f.Earlier):
		why = asked + words.Quantity(f.Earlier, "") + " before others ended"
	case s.After != replicas(f.Demand) && f.Fresh < f.Serving && !f.Total:
		why = asked + fmt.Sprintf("%d without a value counted at target", f.Serving-f.Fresh)
	case s.After != replicas(f.Demand):
		why = " = " + words.Quantity(f.Demand, "")
	}
	if why != "" {
		return fmt.Sprintf("%s: %s", why, words.Replicas(s.After))
	}
	return " = " + words.Replicas(s.After)
}

// batch adds the requests in flight per replica, and where the capacity comes
// from.
func (s Step) batch() string {
	f := s.Facts
	target := "target "
	if f.Learned {
		target = "learned target "
	}
	out := fmt.Sprintf(" (%s in flight per replica, %s%s)", words.Quantity(f.Value, ""), target, words.Quantity(f.Target, ""))
	learned := "learned earlier"
	if f.LearnedFrom > 0 {
		learned = "learned from " + words.Minutes(f.LearnedFrom) + " of traffic"
	}
	switch {
	case f.Arriving:
		return out + ", capacity " + learned
	case f.Arrivals <= 0 && f.Capacity <= 0:
		return out + ", capacity from the target, no arrival rate"
	case f.Capacity <= 0:
		return fmt.Sprintf("%s, capacity from the target, %s requests/s arrive, capacity in requests/s not learned yet", out, words.Rate(f.Arrivals))
	}
	need := f.Arrivals / f.Capacity
	out += fmt.Sprintf(", capacity from the target, %s requests/s ÷ %s per replica = %s, %s", words.Rate(f.Arrivals), words.Rate(f.Capacity), words.Quantity(need, ""), learned)
	if need > f.Demand {
		out += ", not used yet"
	}
	return out
}

func (s Step) starting() string {
	f := s.Facts
	switch {
	case f.Down && f.Replaced > 0:
		return fmt.Sprintf("%s, and others would be removed: keep %d instead of %d", words.Replaced(f.Replaced, f.Limit), s.After, s.Before)
	case f.Down:
		return fmt.Sprintf("%s: keep %d instead of %d until they serve", startingReplicas(f), s.After, s.Before)
	}
	return fmt.Sprintf("%d serving at %s (saturated), %s: keep %d until they serve", f.Serving, words.Quantity(f.Value, f.Unit), startingReplicas(f), s.After)
}

func (s Step) missing() string {
	f := s.Facts
	if s.Before != s.After {
		return fmt.Sprintf("a signal has no value: keep %[2]d instead of %[1]d", s.Before, s.After)
	}
	if f.Signal != "" {
		return fmt.Sprintf("the formula needs %s, which has no value: keep %d", f.Signal, s.After)
	}
	if f.Wait < time.Second { // of a new object, or a new leader
		return fmt.Sprintf("no signal has a value yet, and missing data never scales down: keep %d", s.After)
	}
	return fmt.Sprintf("no signal has had a value for %s, and missing data never scales down: keep %d", words.Duration(f.Wait), s.After)
}

// signalFallback is about one signal without a value.
func (s Step) signalFallback() string {
	f := s.Facts
	out := f.Signal + " has no value"
	if f.Wait >= time.Second {
		out = fmt.Sprintf("%s has had no value for %s", f.Signal, words.Duration(f.Wait))
	}
	if f.Limit == 0 && s.After == s.Before {
		return out + ": its fallback lets the other signals decide"
	}
	out += fmt.Sprintf(": its fallback asks for %s", words.Replicas(s.After))
	if f.MostOf > 1 {
		out += fmt.Sprintf(", the most of %d signals", f.MostOf)
	}
	return out
}

func (s Step) activation() string {
	if s.Facts.Wait > 0 {
		return fmt.Sprintf("no signal is above its activation: keep 1 for %s of %s", words.Duration(s.Facts.Wait), words.Duration(s.Facts.Window))
	}
	if s.Facts.Down {
		return "no signal is above its activation: 0 replicas"
	}
	return fmt.Sprintf("a signal is above its activation: at least %d", s.After)
}

func (s Step) stabilization() string {
	f := s.Facts
	switch {
	case f.Down && f.Ago > 0:
		return fmt.Sprintf("%d needed %s ago, and the window is %s: %d instead of %d for %s more", s.After, words.Duration(f.Ago), words.Duration(f.Window), s.After, s.Before, words.Duration(f.Wait))
	case f.Down:
		return fmt.Sprintf("the last %s are not known yet: %d instead of %d for %s more", words.Duration(f.Window), s.After, s.Before, words.Duration(f.Wait))
	}
	return fmt.Sprintf("no more than %d needed throughout the last %s: %d instead of %d", s.After, words.Duration(f.Window), s.After, s.Before)
}

func (s Step) rollout() string {
	f := s.Facts
	if f.Signal != "" {
		return fmt.Sprintf("%d serving at %s (saturated), fewer than usual because of a rollout: %d, and no probe", f.Serving, words.Quantity(f.Value, f.Unit), s.After)
	}
	if f.Down && f.Serving > 0 {
		return fmt.Sprintf("a rollout is in progress and %d serve, %s: keep %d instead of %d until enough do", f.Serving, startingReplicas(f), s.After, s.Before)
	}
	return fmt.Sprintf("a rollout is in progress and no replica serves, %s: keep %d instead of %d until one does", startingReplicas(f), s.After, s.Before)
}

func startingReplicas(f Facts) string {
	out := fmt.Sprintf("%d starting", f.Coming)
	if f.Wait > 0 {
		out += fmt.Sprintf(" (ready in about %s)", words.Duration(f.Wait))
	}
	if f.Stuck > 0 {
		out += fmt.Sprintf(", %d stuck", f.Stuck)
	}
	return out
}

// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"math"
	"strings"

	"github.com/gpupilot/gpupilot/internal/scale/trend"
	"github.com/gpupilot/gpupilot/internal/scale/words"
)

// Formula makes one number of replicas of what the signals ask for. Without it, the
// signal that asks for the most decides.
type Formula struct {
	Text  string // as the user wrote it
	Terms []Term
	// Evaluate returns the wanted replicas from the values of the terms, in their order. It
	// is pure. Its error names what cannot be computed, such as a division by zero.
	Evaluate func(values []float64) (float64, error)
}

// Term is a variable of a formula.
type Term struct {
	Name    string // as in the formula
	Signals []int  // indexes of Policy.Signals: several for a preset
	// Replicas is set for the replicas that the signals ask for, the most of them, before
	// rounding. Else the term is the value of the first signal: the mean per serving
	// replica, or the workload's total.
	Replicas bool
}

// wanted is the demand before rounding, or what a forecast or a probe made of it. A signal
// that only keeps replicas does not ask for them: added to others, that would grow without end.
func (o *outcome) wanted() float64 {
	if o.raised {
		return float64(o.replicas)
	}
	return o.mean
}

// load is wanted without a probe.
func (o *outcome) load() float64 {
	if o.probing {
		return o.mean
	}
	return o.wanted()
}

// keeps reports whether the signal's own rules keep the base, where its values ask for less.
func (o *outcome) keeps(base int32) bool {
	return o.readable && o.replicas >= base && replicas(o.mean) < base
}

// value returns the value of a term, with of for the replicas that a signal asks for. It is
// false if no signal of it has one. What is measured at the replicas is 0 while none serves; a
// query has its own value then.
func (e *engine) value(t *Term, outcomes []outcome, of func(*outcome) float64) (x float64, ok bool) {
	if first := &outcomes[t.Signals[0]]; !t.Replicas && first.readable {
		return first.input.Value, true
	}
	ofReplicas := true
	for _, i := range t.Signals {
		ofReplicas = ofReplicas && e.p.Signals[i].Activation == nil
		if o := &outcomes[i]; t.Replicas && (o.readable || o.standsIn) {
			x, ok = max(x, of(o)), true
		}
	}
	return x, ok || ofReplicas && e.serving == 0
}

// combine evaluates the policy's formula. It is false if that is not possible: the
// replicas stay then.
func (e *engine) combine(outcomes []outcome) (want int32, ok bool) {
	f, cur := e.p.Formula, e.o.Replicas
	e.first, e.last = 0, 0 // no signal decides alone
	values, shown := make([]float64, len(f.Terms)), make([]string, len(f.Terms))
	evaluate := func(of func(*outcome) float64) (float64, error) {
		for k := range f.Terms {
			values[k], _ = e.value(&f.Terms[k], outcomes, of)
		}
		return f.Evaluate(values)
	}
	for k := range f.Terms {
		t := &f.Terms[k]
		x, ok := e.value(t, outcomes, (*outcome).wanted)
		if !ok {
			return e.step(RuleMissing, cur, cur, Facts{Signal: t.Name}), false
		}
		shown[k] = t.Name + " = " + words.Quantity(x, "")
	}
	facts := Facts{Formula: f.Text, Terms: strings.Join(shown, ", "), Replaced: e.replaced()}
	x, err := evaluate((*outcome).wanted)
	switch {
	case err != nil:
		facts.Failed = err.Error()
	case math.IsNaN(x) || math.IsInf(x, 0):
		facts.Failed = "the result is not a finite number"
	case x < 0:
		facts.Failed = fmt.Sprintf("the result is %s", words.Quantity(x, ""))
	default:
		facts.Demand = trend.Finite(x)
		want = e.round(x, &facts)
		e.asked = want
		if load, err := evaluate((*outcome).load); err == nil && e.probing {
			e.asked = e.round(load, &Facts{})
		}
		least, err := evaluate(func(o *outcome) float64 { return max(o.mean, float64(o.replicas)) })
		if kept := min(cur, replicas(least)); err == nil && want < kept {
			want, facts.Tolerance = kept, 0
		}
		return e.step(RuleFormula, cur, e.keep(want, outcomes, &facts), facts), true
	}
	return e.step(RuleFormula, cur, cur, facts), false
}

// round is a result of the formula in whole replicas: the base within the tolerance.
func (e *engine) round(x float64, facts *Facts) int32 {
	base, t := e.base(), e.p.downTolerance()
	if x > float64(base) {
		t = orDefaultTolerance(e.p.Up.Tolerance)
	}
	want := replicas(x)
	if want == base || math.Abs(x-float64(base)) > t*float64(base) {
		return want
	}
	facts.Tolerance = t
	return e.unchanged(want)
}

// keep is what the formula asks for, or at least the base while one of its signals keeps that.
func (e *engine) keep(want int32, outcomes []outcome, facts *Facts) int32 {
	base := e.base()
	for k := range e.p.Formula.Terms {
		for _, i := range e.p.Formula.Terms[k].Signals {
			if want < base && outcomes[i].keeps(base) {
				facts.Signal, facts.Tolerance = e.p.Signals[i].Name, 0
				return max(base, outcomes[i].replicas)
			}
		}
	}
	return want
}

// formulaExcerpt is how many characters of a formula a sentence shows.
const formulaExcerpt = 120

func (s Step) formula() string {
	f := s.Facts
	text := []rune(strings.Join(strings.Fields(f.Formula), " "))
	if len(text) > formulaExcerpt {
		text = append(text[:formulaExcerpt], '…')
	}
	out := fmt.Sprintf("formula %s, with %s", string(text), f.Terms)
	if f.Failed != "" {
		return fmt.Sprintf("%s: %s: keep %d", out, f.Failed, s.After)
	}
	if f.Demand != float64(s.After) {
		out += ": " + words.Quantity(f.Demand, "")
	}
	switch {
	case f.Signal != "":
		out = fmt.Sprintf("%s, and %s keeps %s", out, f.Signal, words.Replicas(s.After))
	case f.Tolerance > 0:
		out = fmt.Sprintf("%s, within %s of %s: no change", out, words.Percent(f.Tolerance), words.Replicas(s.After))
	default:
		out += " = " + words.Replicas(s.After)
	}
	if f.Replaced > 0 {
		out += "; " + words.Replaced(f.Replaced, s.Before)
	}
	return out
}

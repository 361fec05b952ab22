// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"math"
	"strings"

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

// asked is the demand before rounding, or what a forecast or a probe made of it. A signal
// that only keeps the base does not ask for it: added to others, that would grow without
// end.
func (o *outcome) asked(base int32) float64 {
	if o.replicas > base && o.replicas != replicas(o.mean) {
		return float64(o.replicas)
	}
	return o.mean
}

// keeps reports whether the signal's own rules keep the base, where its values ask for less.
func (o *outcome) keeps(base int32) bool {
	return o.readable && o.replicas >= base && replicas(o.mean) < base
}

// value returns the value of a term. It is false if no signal of it has one. What is
// measured at the replicas is 0 while none serves; a query has its own value then.
func (e *engine) value(t *Term, outcomes []outcome) (x float64, ok bool) {
	if first := &outcomes[t.Signals[0]]; !t.Replicas && first.readable {
		return first.input.Value, true
	}
	ofReplicas := true
	for _, i := range t.Signals {
		ofReplicas = ofReplicas && e.p.Signals[i].Activation == nil
		if o := &outcomes[i]; t.Replicas && (o.readable || o.standsIn) {
			x, ok = max(x, o.asked(e.base())), true
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
	for k := range f.Terms {
		t := &f.Terms[k]
		if values[k], ok = e.value(t, outcomes); !ok {
			return e.step(RuleMissing, cur, cur, Facts{Signal: t.Name}), false
		}
		shown[k] = t.Name + " = " + words.Quantity(values[k], "")
	}
	facts := Facts{Formula: f.Text, Terms: strings.Join(shown, ", ")}
	x, err := f.Evaluate(values)
	switch {
	case err != nil:
		facts.Failed = err.Error()
	case math.IsNaN(x) || math.IsInf(x, 0):
		facts.Failed = "the result is not a finite number"
	case x < 0:
		facts.Failed = fmt.Sprintf("the result is %s", words.Quantity(x, ""))
	default:
		facts.Demand = printable(x)
		return e.step(RuleFormula, cur, e.wanted(x, outcomes, &facts), facts), true
	}
	return e.step(RuleFormula, cur, cur, facts), false
}

// wanted is the result of the formula in whole replicas: at least the base while one of its
// signals keeps that, and the base within the tolerance.
func (e *engine) wanted(x float64, outcomes []outcome, facts *Facts) int32 {
	base, want := e.base(), replicas(x)
	if want < base {
		for k := range e.p.Formula.Terms {
			for _, i := range e.p.Formula.Terms[k].Signals {
				if outcomes[i].keeps(base) {
					facts.Signal = e.p.Signals[i].Name
					return base
				}
			}
		}
	}
	t := e.p.downTolerance()
	if x > float64(base) {
		t = orDefaultTolerance(e.p.Up.Tolerance)
	}
	if want != base && math.Abs(x-float64(base)) <= t*float64(base) {
		facts.Tolerance = t
		return base
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
		return fmt.Sprintf("%s, and %s keeps %s", out, f.Signal, wholeReplicas(s.After))
	case f.Tolerance > 0:
		return fmt.Sprintf("%s, within %s of %s: no change", out, words.Percent(f.Tolerance), wholeReplicas(s.After))
	}
	return out + " = " + wholeReplicas(s.After)
}

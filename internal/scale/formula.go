// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"math"
	"strings"

	"github.com/gpupilot/gpupilot/internal/scale/facts"
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
	return o.readable && o.replicas >= base && facts.Replicas(o.mean) < base
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
			return e.step(RuleMissing, cur, cur, facts.Missing{Term: t.Name}), false
		}
		shown[k] = t.Name + " = " + words.Quantity(x, "")
	}
	fact := &facts.Formula{Text: f.Text, Terms: strings.Join(shown, ", "), Replaced: e.replaced()}
	x, err := evaluate((*outcome).wanted)
	switch {
	case err != nil:
		fact.Failed = err.Error()
	case math.IsNaN(x) || math.IsInf(x, 0):
		fact.Failed = "the result is not a finite number"
	case x < 0:
		fact.Failed = fmt.Sprintf("the result is %s", words.Quantity(x, ""))
	default:
		fact.Demand = trend.Finite(x)
		want = e.round(x, fact)
		e.asked = want
		if load, err := evaluate((*outcome).load); err == nil && e.probing {
			e.asked = e.round(load, &facts.Formula{})
		}
		least, err := evaluate(func(o *outcome) float64 { return max(o.mean, float64(o.replicas)) })
		if kept := min(cur, facts.Replicas(least)); err == nil && want < kept {
			want, fact.Tolerance = kept, 0
		}
		return e.step(RuleFormula, cur, e.keep(want, outcomes, fact), fact), true
	}
	return e.step(RuleFormula, cur, cur, fact), false
}

// round is a result of the formula in whole replicas: the base within the tolerance.
func (e *engine) round(x float64, fact *facts.Formula) int32 {
	base, t := e.base(), e.p.downTolerance()
	if x > float64(base) {
		t = orDefaultTolerance(e.p.Up.Tolerance)
	}
	want := facts.Replicas(x)
	if want == base || math.Abs(x-float64(base)) > t*float64(base) {
		return want
	}
	fact.Tolerance = t
	return e.unchanged(want)
}

// keep is what the formula asks for, or at least the base while one of its signals keeps that.
func (e *engine) keep(want int32, outcomes []outcome, fact *facts.Formula) int32 {
	base := e.base()
	for k := range e.p.Formula.Terms {
		for _, i := range e.p.Formula.Terms[k].Signals {
			if want < base && outcomes[i].keeps(base) {
				fact.Keeper, fact.Tolerance = e.p.Signals[i].Name, 0
				return max(base, outcomes[i].replicas)
			}
		}
	}
	return want
}

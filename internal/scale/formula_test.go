// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

// both is a policy with a formula over the replicas that two signals ask for, and the value of the first.
func both(f func(queue, use, queueValue float64) (float64, error)) Policy {
	return Policy{
		Min: 1, Max: 40, Down: Rules{Tolerance: AutoTolerance}, Up: Rules{Tolerance: AutoTolerance},
		Signals: []Signal{{Name: "queue", Target: 5}, {Name: "use", Target: 60, Ceiling: 100}},
		Formula: &Formula{
			Text: "f(queue, use)",
			Terms: []Term{
				{Name: "queue.replicas", Signals: []int{0}, Replicas: true},
				{Name: "use.replicas", Signals: []int{1}, Replicas: true},
				{Name: "queue.value", Signals: []int{0}},
			},
			Evaluate: func(x []float64) (float64, error) { return f(x[0], x[1], x[2]) },
		},
	}
}

// A formula decides in place of the most that a signal asks for. What it cannot compute changes nothing.
func TestFormula(t *testing.T) {
	sum := func(queue, use, _ float64) (float64, error) { return queue + use, nil }
	f := func(what string, formula func(a, b, c float64) (float64, error), queue, use float64, replicas int, want int32, says string) {
		t.Helper()
		p := both(formula)
		o := seen(t0, make([]float64, replicas)...)
		for k := range o.Pods {
			o.Pods[k].Readings = []Reading{{}, {Value: use, At: t0.Add(-time.Second), OK: !math.IsNaN(use)}}
		}
		o.Totals = []Reading{{Value: queue, At: t0.Add(-time.Second), OK: !math.IsNaN(queue)}}
		d, _ := Decide(p, o, State{Since: t0.Add(-time.Hour)}, t0)
		if d.Replicas != want || !strings.Contains(d.Sentence(), says) {
			t.Errorf("%s: %d replicas, want %d and %q: %s", what, d.Replicas, want, says, d.Sentence())
		}
	}
	value := func(x float64) func(a, b, c float64) (float64, error) {
		return func(_, _, _ float64) (float64, error) { return x, nil }
	}
	f("a sum of fractions", sum, 12, 66, 2, 5, "formula f(queue, use), with queue.replicas = 2.4, use.replicas = 2.2, queue.value = 12: 4.6 = 5 replicas")
	f("less than the most", func(_, use, _ float64) (float64, error) { return use / 2, nil }, 100, 60, 4, 2, "queue.replicas = 20, use.replicas = 4")
	f("the value", func(_, _, value float64) (float64, error) { return value / 3, nil }, 30, 60, 2, 10, "")
	f("beyond the bounds", value(1e12), 12, 60, 2, 40, "maxReplicas is 40")
	f("a negative result", value(-3), 12, 60, 3, 3, "keep 3: the result is -3 (")
	f("no number", value(math.NaN()), 12, 60, 3, 3, "keep 3: the result is not a finite number")
	f("infinity", value(math.Inf(1)), 12, 60, 3, 3, "keep 3: the result is not a finite number")
	f("an error", func(_, _, _ float64) (float64, error) { return 0, errors.New("division by zero") }, 12, 60, 3, 3, "keep 3: division by zero")
	f("a signal without a value", sum, math.NaN(), 90, 3, 3, "keep 3: the formula needs queue.replicas, which has no value")
	f("no signal with a value", sum, math.NaN(), math.NaN(), 3, 3, "all signals have been missing")
}

// Zero replicas have no utilisation, and leave zero all the same.
func TestFormulaAtZero(t *testing.T) {
	zero := 0.0
	p := both(func(queue, use, _ float64) (float64, error) { return queue + use, nil })
	p.Min, p.Signals[0].Activation = 0, &zero
	d, _ := Decide(p, Observation{Totals: []Reading{{Value: 12, At: t0, OK: true}}}, State{}, t0)
	if d.Replicas != 3 {
		t.Errorf("%d replicas, want 3: %s", d.Replicas, d.Sentence())
	}
	d, _ = Decide(p, Observation{Totals: []Reading{{}}}, State{}, t0)
	if d.Replicas != 0 {
		t.Errorf("without a value: %d replicas, want 0: %s", d.Replicas, d.Sentence())
	}
}

// Whatever is added to a signal that keeps the base, nothing grows.
func TestFormulaDoesNotGrowByItself(t *testing.T) {
	p := both(func(queue, use, _ float64) (float64, error) { return queue + use, nil })
	var s State
	cur := int32(4)
	for i := range 120 {
		now := t0.Add(time.Duration(i) * time.Second)
		o := seen(now, make([]float64, cur)...)
		for k := range o.Pods {
			o.Pods[k].Since = now.Add(-time.Hour)
			o.Pods[k].Readings = []Reading{{}, {Value: 50, At: now.Add(-time.Second), OK: k < 2}} // two are silent
		}
		o.Totals = []Reading{{Value: 2, At: now, OK: true}}
		var d Decision
		if d, s = Decide(p, o, s, now); d.Replicas != 4 {
			t.Fatalf("after %d s: %d replicas, want 4: %s", i, d.Replicas, d.Sentence())
		}
		cur = d.Replicas
	}
}

// A replica without a reading may carry any load: a formula does not remove it.
func TestFormulaOverPartialData(t *testing.T) {
	p := both(func(queue, use, _ float64) (float64, error) { return max(queue, use), nil })
	o := seen(t0, make([]float64, 6)...)
	for k := range o.Pods {
		o.Pods[k].Readings = []Reading{{}, {Value: 10, At: t0.Add(-time.Second), OK: k < 3}}
	}
	o.Totals = []Reading{{Value: 1, At: t0, OK: true}}
	d, _ := Decide(p, o, State{Since: t0.Add(-time.Hour)}, t0)
	if d.Replicas != 6 {
		t.Errorf("%d replicas, want 6: %s", d.Replicas, d.Sentence())
	}
}

// A fallback stands in for a signal of a formula.
func TestFormulaWithAFallback(t *testing.T) {
	p := both(func(queue, use, _ float64) (float64, error) { return queue + use, nil })
	p.Formula.Terms = p.Formula.Terms[:2]
	p.Formula.Evaluate = func(x []float64) (float64, error) { return x[0] + x[1], nil }
	p.Signals[0].Fallback = Fallback{Mode: FallbackReplicas, Replicas: 4}
	o := seen(t0, 0, 0)
	for k := range o.Pods {
		o.Pods[k].Readings = []Reading{{}, {Value: 66, At: t0.Add(-time.Second), OK: true}}
	}
	s := State{Since: t0.Add(-time.Hour), Signals: []SignalState{{Name: "queue", SilentSince: t0.Add(-time.Hour)}}}
	if d, _ := Decide(p, o, s, t0); d.Replicas != 7 {
		t.Errorf("%d replicas, want 4 + 2.2: %s", d.Replicas, d.Sentence())
	}
}

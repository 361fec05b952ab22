// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// serving is replicas that serve for long, each telling these values.
func serving(n int, values ...float64) scale.Observation {
	o := scale.Observation{Replicas: int32(n)}
	for range n {
		p := scale.Replica{Phase: scale.Serving, Since: t0.Add(-time.Hour)}
		for _, v := range values {
			p.Readings = append(p.Readings, scale.Reading{Value: v, At: t0.Add(-time.Second), OK: !math.IsNaN(v)})
		}
		o.Pods = append(o.Pods, p)
	}
	return o
}

func running(window time.Duration) scale.Policy {
	return scale.Policy{
		Min: 2, Max: 12, Signals: []scale.Signal{{Name: "running", Target: 8, Aggregate: gpu.Sum}},
		Up: scale.Rules{Tolerance: 0.1}, Down: scale.Rules{Tolerance: 0.1, Window: window},
	}
}

// watched is the state of an engine that has seen this for an hour.
func watched(p scale.Policy, o scale.Observation) (s scale.State) {
	c := Case{Policy: p, Observation: o}
	for t := -time.Hour; t < 0; t += time.Second {
		_, s = scale.Decide(p, c.observationAt(nil, t0.Add(t), t), s, t0.Add(t))
	}
	return s
}

func find(t *testing.T, all []Change, signal string, up bool) Change {
	t.Helper()
	for _, c := range all {
		if c.Signal == signal && c.Up == up {
			return c
		}
	}
	t.Fatalf("nothing of %s, up %v, in %+v", signal, up, all)
	return Change{}
}

// What is found is true: beyond it the engine decides otherwise, this side of
// it it does not.
func TestChangesAreTrue(t *testing.T) {
	p, o := running(5*time.Minute), serving(5, 7)
	c := &Case{Policy: p, Observation: o, State: watched(p, o), Now: t0}
	all := Changes(c)
	for _, up := range []bool{true, false} {
		x := find(t, all, "running", up)
		step := 0.02
		if !up {
			step = -step
		}
		if got := c.simulate(map[int]float64{0: x.Value * (1 + step)}); got.replicas != x.Replicas {
			t.Errorf("%+v: beyond it %+v", x, got)
		}
		if got := c.simulate(map[int]float64{0: x.Value * (1 - step)}); got.replicas != 5 {
			t.Errorf("%+v: this side of it %+v", x, got)
		}
	}
	up, down := find(t, all, "running", true), find(t, all, "running", false)
	if up.Replicas <= 5 || up.Value <= 8 || up.Value > 12 || up.Held > time.Minute {
		t.Errorf("up: %+v", up)
	}
	if down.Replicas >= 5 || down.Value >= 7 || down.Value < 4 || down.Held < 4*time.Minute {
		t.Errorf("down: %+v", down)
	}
}

// Where the bounds end, or another signal has the say, nothing is promised.
func TestNothingWouldChange(t *testing.T) {
	p := running(0)
	p.Max = 5
	all := Changes(&Case{Policy: p, Observation: serving(5, 8), Now: t0, State: watched(p, serving(5, 8))})
	for _, x := range all {
		if x.Up {
			t.Errorf("above the maximum: %+v", x)
		}
	}
	p = running(0)
	p.Signals = append(p.Signals, scale.Signal{Name: "waiting", Target: 2, Aggregate: gpu.Sum})
	o := serving(5, 8, 0.1)
	for _, x := range Changes(&Case{Policy: p, Observation: o, Now: t0, State: watched(p, o)}) {
		if x.Signal == "waiting" && !x.Up {
			t.Errorf("running keeps the five, whatever waits: %+v", x)
		}
	}
	if x := Changes(&Case{Policy: running(0), Observation: serving(3, math.NaN()), Now: t0}); len(x) > 0 {
		t.Errorf("of a signal that cannot be read: %+v", x)
	}
}

// A given value leads to what the thresholds promise; a value that is gone lowers nothing.
func TestWith(t *testing.T) {
	p, o := running(0), serving(5, 7)
	c := &Case{Policy: p, Observation: o, State: watched(p, o), Now: t0}
	f := func(v float64, replicas int32, changed bool) {
		t.Helper()
		got, err := c.With(map[string]float64{"running": v})
		if err != nil || got.Changed != changed || got.Decision.Replicas != replicas {
			t.Errorf("running %g: %d replicas, changed %v, %v; want %d, %v", v, got.Decision.Replicas, got.Changed, err, replicas, changed)
		}
	}
	f(7, 5, false)
	f(16, 10, true)
	f(1, 2, true)
	f(math.NaN(), 5, false)
	for _, x := range Changes(c) {
		got, err := c.With(map[string]float64{"running": x.Value * 1.02})
		if x.Up && (err != nil || got.Decision.Replicas != x.Replicas || got.After != x.Held) {
			t.Errorf("%+v: %+v, %v", x, got, err)
		}
	}
	if _, err := c.With(map[string]float64{"waiting": 1}); err == nil {
		t.Error("a signal that does not exist was accepted")
	}
	unread := &Case{Policy: p, Observation: serving(3, math.NaN()), Now: t0}
	if _, err := unread.With(map[string]float64{"running": 1}); err == nil {
		t.Error("a signal without a value was accepted")
	}
	// Of a signal for the whole workload, the value is the total.
	p.Signals[0].Type, p.Signals[0].Target = scale.Value, 40
	c = &Case{Policy: p, Observation: o, State: watched(p, o), Now: t0}
	f(35, 5, false)
	f(80, 10, true)
}

// Outcome is what follows from values that last.
type Outcome struct {
	Decision scale.Decision // the first with other replicas; without one, the last
	After    time.Duration  // of that decision
	Changed  bool           // the replicas change
}

// With returns what the engine decides if signals have these values from now on and the rest stays unchanged. A value is as
// in the inputs of a decision: the mean per serving replica, or the workload's total. NaN is no value.
func (c *Case) With(values map[string]float64) (Outcome, error) {
	set := make(map[int]float64, len(values))
	for name, v := range values {
		i := slices.IndexFunc(c.Policy.Signals, func(s scale.Signal) bool { return s.Name == name })
		if i < 0 {
			return Outcome{}, fmt.Errorf("there is no signal %.100q", name)
		}
		if _, ok := c.currentValue(i); !ok {
			return Outcome{}, fmt.Errorf("signal %.100q has no value now, so nothing is known to replace", name)
		}
		if !(i < len(c.Observation.Totals) && c.Observation.Totals[i].OK) {
			v = Reading(&c.Policy.Signals[i], v, float64(c.readable(i)))
		}
		set[i] = v
	}
	o := c.simulate(set)
	return Outcome{o.decision, o.after, o.replicas != c.Observation.Replicas}, nil
}

// readable is the number of serving replicas with a value of signal i.
func (c *Case) readable(i int) (n int) {
	for _, p := range c.Observation.Pods {
		if p.Phase == scale.Serving && i < len(p.Readings) && p.Readings[i].OK {
			n++
		}
	}
	return n
}

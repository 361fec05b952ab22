// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/trend"
)

// Each of these is the least change of an input that changes the decision.
func TestEdges(t *testing.T) {
	nan := math.NaN()
	p := utilPolicy()
	f := func(name string, o Observation, want int32, rule Rule, applied bool) {
		t.Helper()
		d, _ := Decide(p, o, State{}, t0)
		if d.Replicas != want || has(d, rule) != applied {
			t.Errorf("%s: %d replicas, want %d; %s applied is %v, want %v: %s", name, d.Replicas, want, rule, has(d, rule), applied, d.Sentence())
		}
	}
	f("9 of 10 replicas with a reading do not lower", seen(t0, 5, 5, 5, 5, 5, 5, 5, 5, 5, nan), 10, RulePartial, true)
	f("10 do", seen(t0, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5), 1, RulePartial, false)
	began := func(o Observation) Observation { // the replicas without a reading, just now
		for i := range o.Pods {
			if math.IsNaN(o.Pods[i].Readings[0].Value) {
				o.Pods[i].Since = t0.Add(-warm - time.Second)
			}
		}
		return o
	}
	f("6 of 10 lower if the others began just now", began(seen(t0, 5, 5, 5, 5, 5, 5, nan, nan, nan, nan)), 5, RulePartial, false)
	f("5 of 9 do not", began(seen(t0, 5, 5, 5, 5, 5, nan, nan, nan, nan)), 9, RulePartial, true)
	p.Signals[0].Target = 80
	f("a saturated signal probes", seen(t0, 100, 100, 100, 100), 6, RuleSaturated, true)
	f("it does not while one replica has no reading", seen(t0, 100, 100, 100, nan), 4, RuleSaturated, false)

	// Two of five pods terminate: their replacements are yet to be created, and are
	// capacity on the way.
	replaced := with(seen(t0, 100, 100, 100, 100), t0, 2, Terminating, time.Second)
	f("the replacements of terminating pods are credited", replaced, 6, RuleStarting, true)
	f("without terminating pods there is nothing to wait for", seen(t0, 100, 100, 100, 100), 6, RuleSaturated, true)
}

// A probe is made once for what serves, and again when its credit is over: what
// it asked for has not come by then.
func TestProbesAgainAfterItsCredit(t *testing.T) {
	p := utilPolicy()
	p.Startup, p.Signals[0].Target = time.Minute, 80
	var s State
	var probes []time.Duration
	for after := time.Duration(0); after <= p.credit()+time.Second; after += time.Second {
		now := t0.Add(after)
		var d Decision
		d, s = Decide(p, with(seen(now, 100, 100, 100, 100), now, 4, Unschedulable, time.Minute), s, now)
		if has(d, RuleSaturated) {
			probes = append(probes, after)
		}
	}
	if len(probes) != 2 || probes[0] != 0 || probes[1] != p.credit() {
		t.Errorf("probes after %v, want one at once and one after %v", probes, p.credit())
	}
}

// A forecast is bounded by a multiple of the demand that is measured, however
// steep the trend.
func TestForecastIsBounded(t *testing.T) {
	p := Policy{
		Min: 1, Max: 1000, Startup: 5 * time.Minute,
		Signals: []Signal{{Name: "queue", Target: 1}}, Down: Rules{Window: Auto},
	}
	s := State{Signals: []SignalState{{Name: "queue", Trend: trend.Trend{
		Step: p.Startup / 8, At: t0.Add(-time.Second), Level: 10, Slope: 10, Judged: 24, Naive: 10, Holt: 1,
	}}}}
	o := seen(t0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
	if d, _ := Decide(p, o, s, t0); d.Replicas != 15 || !has(d, RuleForecast) {
		t.Errorf("a demand of 10 replicas with a steep trend gives %d, want 15: %s", d.Replicas, d.Sentence())
	}
}

// An up-window that is longer than the down-window holds for its whole length.
func TestLongUpWindow(t *testing.T) {
	p := utilPolicy()
	p.Signals[0].Ceiling = 0
	p.Up.Window, p.Down.Window = time.Minute, 10*time.Second
	const step = 100 // seconds; the load is four times as high from there on
	got, _ := run(p, State{}, func(i int, cur int32, now time.Time) Observation {
		load := 55.0
		if i >= step {
			load = 220
		}
		v := make([]float64, cur)
		for k := range v {
			v[k] = load / float64(cur)
		}
		return seen(now, v...)
	}, step+90, 1)
	for i, n := range got {
		switch since := i - step; {
		case since < 60 && n != 1:
			t.Fatalf("%d replicas %d s after the load rose, want 1 for the 60 s of the window", n, since)
		case since > 75 && n != 4:
			t.Fatalf("%d replicas %d s after the load rose, want 4 behind the window of 60 s", n, since)
		}
	}
}

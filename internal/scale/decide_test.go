// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale/facts"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// utilPolicy is a target of 60 % GPU utilisation between 1 and 20 replicas,
// without stabilisation.
func utilPolicy() Policy {
	return Policy{
		Min: 1, Max: 20,
		Signals: []Signal{{Name: "Utilization", Unit: "%", Target: 60, Ceiling: 100, Aggregate: gpu.Mean}},
		Up:      Rules{Tolerance: 0.1}, Down: Rules{Tolerance: 0.1},
	}
}

// seen is an observation at now of replicas that have served for an hour, one
// for each value; NaN is a replica without a reading.
func seen(now time.Time, values ...float64) Observation {
	o := Observation{Replicas: int32(len(values))}
	for _, v := range values {
		o.Pods = append(o.Pods, Replica{
			Phase: Serving, Since: now.Add(-time.Hour),
			Readings: []Reading{{Value: v, At: now.Add(-time.Second), OK: !math.IsNaN(v)}},
		})
	}
	return o
}

// with adds n pods in a phase since age ago and counts them in spec.replicas.
func with(o Observation, now time.Time, n int, ph Phase, age time.Duration) Observation {
	for range n {
		o.Pods = append(o.Pods, Replica{Phase: ph, Since: now.Add(-age)})
		o.Replicas++
	}
	return o
}

func has(d Decision, r Rule) bool {
	for _, s := range d.Steps {
		if s.Rule == r {
			return true
		}
	}
	return false
}

func TestDecide(t *testing.T) {
	nan := math.NaN()
	f := func(name string, p Policy, o Observation, want int32, rules ...Rule) {
		t.Helper()
		d, _ := Decide(p, o, State{}, t0)
		if d.Replicas != want {
			t.Errorf("%s: %d replicas, want %d: %s", name, d.Replicas, want, d.Sentence())
		}
		for _, r := range rules {
			if !has(d, r) {
				t.Errorf("%s: no step %s in: %s", name, r, d.Sentence())
			}
		}
	}
	p := utilPolicy()
	f("at target", p, seen(t0, 60, 60), 2)
	f("within tolerance", p, seen(t0, 65, 65), 2, RuleTolerance)
	p.Up.Tolerance, p.Down.Tolerance = AutoTolerance, AutoTolerance
	f("a share just above its target, without a tolerance in the policy", p, seen(t0, 61, 61), 3, RuleDemand)
	f("a share just below", p, seen(t0, 56, 56, 56), 3)
	f("within tolerance downward", p, seen(t0, 54.5, 54.5, 54.5, 54.5, 54.5, 54.5, 54.5, 54.5, 54.5, 54.5, 54.5), 11, RuleTolerance)
	p.Signals[0].Ceiling = 0
	f("another signal just above", p, seen(t0, 65, 65), 2, RuleTolerance)
	f("and well above", p, seen(t0, 67, 67), 3, RuleDemand)
	p = utilPolicy()
	f("above", p, seen(t0, 80, 80, 80), 4, RuleDemand)
	f("below", p, seen(t0, 20, 20, 20), 1, RuleDemand)
	f("min", p, seen(t0, 0, 0), 1, RuleBounds)
	f("saturated: the metric alone asks for as much as a probe", p, seen(t0, 100), 2, RuleDemand)
	high := utilPolicy()
	high.Signals[0].Target = 80
	f("saturated: probe further than the metric can say", high, seen(t0, 100, 100, 100, 100), 6, RuleSaturated)
	f("saturated, capacity coming", p, with(seen(t0, 100), t0, 1, Starting, time.Second), 2)
	f("saturated, more coming than the metric asks for", p, with(seen(t0, 100, 100), t0, 3, Starting, time.Second), 5, RuleStarting)
	f("loading replicas are not averaged in", p, with(seen(t0, 66, 66, 66), t0, 1, Starting, time.Second), 4)
	f("what is starting is let start", p, with(seen(t0, 20, 20, 20), t0, 2, Starting, time.Second), 5, RuleStarting)
	f("what does not start is not waited for", p, with(seen(t0, 20, 20, 20), t0, 2, Starting, time.Hour), 1)
	f("pods yet to be created are on the way", p, Observation{Replicas: 5, Pods: seen(t0, 100, 100).Pods}, 5, RuleStarting)
	f("credit expires", p, with(seen(t0, 100), t0, 2, Starting, time.Hour), 2, RuleDemand)
	f("unschedulable is not capacity and does not block", p, with(seen(t0, 55, 55), t0, 2, Unschedulable, time.Minute), 2)
	f("one blind of two, up", p, seen(t0, 100, nan), 2)
	f("one blind of two counts at target", p, seen(t0, 10, nan), 2)
	f("too many blind to lower", p, seen(t0, 5, 5, nan, nan, nan), 5, RulePartial)
	f("one blind of four is enough", p, seen(t0, 30, 30, 30, nan), 4, RulePartial)
	justBegan := seen(t0, 30, 30, 30, nan)
	justBegan.Pods[3].Since = t0.Add(-warm - p.maxAge())
	f("unless it just began: then it counts at target", p, justBegan, 3)
	f("nothing readable", p, seen(t0, nan, nan, nan), 3, RuleMissing)
	f("nothing serves", p, with(Observation{}, t0, 2, Starting, time.Second), 2, RuleNotServing)
	f("garbage is missing", p, seen(t0, -5, math.Inf(1)), 2, RuleMissing)
	f("huge", p, seen(t0, 1e308, 1e308), 2, RuleMissing)
	f("huge but finite", p, seen(t0, 1e300), 20, RuleBounds)
	f("zero replicas come up to min", p, Observation{}, 1)

	stale := seen(t0, 10, 10)
	for i := range stale.Pods {
		stale.Pods[i].Readings[0].At = t0.Add(-10 * time.Second)
	}
	f("stale never lowers", p, stale, 2, RuleMissing)

	fresh := seen(t0, 100, 100, 60)
	fresh.Pods[2].Since = t0.Add(-2 * time.Second)
	f("a replica that just began holds the way up", p, fresh, 3, RuleSettling)
	fresh.Pods[0].Readings[0].Value, fresh.Pods[1].Readings[0].Value, fresh.Pods[2].Readings[0].Value = 20, 20, 0
	f("and the way down", p, fresh, 3, RuleSettling)
	fresh.Pods[0].Readings[0].At, fresh.Pods[1].Readings[0].At = t0, t0
	f("its own reading does not count before it is warm", p, fresh, 2)
	for i := range fresh.Pods {
		fresh.Pods[i].Readings[0].Value = 96
	}
	fresh.Pods[0].Readings[0].At = t0.Add(-time.Second)
	f("no probe while the load spreads", p, fresh, 3)

	going := seen(t0, 0, nan)
	going.Replicas = 1
	f("a pod that is about to go is not asked for back", p, going, 1)
	going = seen(t0, 19, 20, 20)
	going.Replicas = 1
	f("nor within the tolerance", p, going, 1)

	capped := p
	capped.MaxGPUs, capped.GPUsPerReplica = 8, 2
	f("budget", capped, seen(t0, 100, 100, 100), 4, RuleBudget)

	slow := p
	slow.Up.Policies = []RatePolicy{{Value: 1, Period: time.Minute}}
	f("rate", slow, seen(t0, 100, 100), 3, RuleRate)
	slow.Up.Select = SelectDisabled
	f("disabled", slow, seen(t0, 100, 100), 2, RuleDisabled)

	window := p
	window.Down.Window = time.Minute
	f("an uncovered window holds", window, seen(t0, 5, 5), 2, RuleStabilization)

	two := p
	two.Signals = append(two.Signals, Signal{Name: "queue", Target: 4})
	both := seen(t0, 30, 30)
	f("one of two signals missing cannot lower", two, both, 2, RuleMissing)
	for i := range both.Pods {
		both.Pods[i].Readings = append(both.Pods[i].Readings, Reading{Value: 8, At: t0, OK: true})
	}
	f("the highest signal wins", two, both, 4)
}

func TestTotals(t *testing.T) {
	p := utilPolicy()
	one := 1.0
	p.Min = 0
	p.Signals = []Signal{{Name: "backlog", Type: AverageValue, Target: 10, Activation: &one}}
	f := func(name string, cur int, total Reading, want int32) {
		t.Helper()
		o := seen(t0, make([]float64, cur)...)
		o.Totals = []Reading{total}
		for i := range o.Pods {
			o.Pods[i].Readings = nil
		}
		if d, _ := Decide(p, o, State{}, t0); d.Replicas != want {
			t.Errorf("%s: %d replicas, want %d: %s", name, d.Replicas, want, d.Sentence())
		}
	}
	f("from zero", 0, Reading{Value: 25, At: t0, OK: true}, 3)
	f("stays at zero", 0, Reading{Value: 1, At: t0, OK: true}, 0)
	f("to zero", 1, Reading{Value: 0.5, At: t0, OK: true}, 0)
	f("missing does not go to zero", 2, Reading{}, 2)
	f("missing does not wake", 0, Reading{}, 0)
	f("stale does not go to zero", 1, Reading{Value: 0, At: t0.Add(-time.Hour), OK: true}, 1)
}

// run replays n observations one second apart, from t0 on, and returns the replicas
// decided.
func run(p Policy, s State, obs func(i int, cur int32, now time.Time) Observation, n int, cur int32) ([]int32, State) {
	var out []int32
	for i := range n {
		now := t0.Add(time.Duration(i) * time.Second)
		var d Decision
		d, s = Decide(p, obs(i, cur, now), s, now)
		cur = d.Replicas
		out = append(out, cur)
	}
	return out, s
}

func TestStabilizationHoldsForTheWholeWindow(t *testing.T) {
	p := utilPolicy()
	p.Down.Window = 30 * time.Second
	got, _ := run(p, State{}, func(i int, cur int32, now time.Time) Observation {
		v := make([]float64, cur)
		for k := range v {
			v[k] = 180 / float64(cur)
			if i >= 40 {
				v[k] = 60 / float64(cur)
			}
		}
		return seen(now, v...)
	}, 80, 3)
	if got[39] != 3 || got[69] != 3 || got[75] != 1 {
		t.Errorf("replicas at 39 s, 69 s, 75 s: %d, %d, %d; want 3, 3, 1", got[39], got[69], got[75])
	}
}

func TestProbesOncePerEpoch(t *testing.T) {
	p := utilPolicy()
	p.Signals[0].Target = 80
	// Four serve at 100 % and nothing that was asked for ever comes.
	got, _ := run(p, State{}, func(i int, cur int32, now time.Time) Observation {
		o := seen(now, 100, 100, 100, 100)
		return with(o, now, int(cur)-4, Unschedulable, time.Minute)
	}, 60, 4)
	for i, n := range got {
		if n > 6 {
			t.Fatalf("after %d s: %d replicas; a probe is made once, not each tick", i, n)
		}
	}
	if got[0] != 6 {
		t.Errorf("first probe went to %d, want 6", got[0])
	}
}

func TestABacklogIsForgottenOnceItIsProcessed(t *testing.T) {
	p := utilPolicy()
	p.Down.Window = 5 * time.Minute
	// Two saturated replicas ask for four; these serve from 20 s on and process
	// the backlog at 100 % for another 3 s, though they need not be more.
	got, s := run(p, State{}, func(i int, cur int32, now time.Time) Observation {
		if i < 20 {
			return with(seen(now, 100, 100), now, int(cur)-2, Starting, time.Duration(i)*time.Second)
		}
		v := 100.0
		if i >= 23 {
			v = 55
		}
		o := seen(now, v, v, v, v)
		for k := range o.Pods {
			o.Pods[k].Readings[0].At = now
		}
		o.Pods[3].Since = t0.Add(20 * time.Second)
		return with(o, now, int(cur)-4, Starting, time.Second)
	}, 40, 2)
	for i, n := range got {
		if n > 4 && (i < 22 || n > 7 || i > 24) {
			t.Fatalf("after %d s: %d replicas: the backlog was taken for load, and kept", i, n)
		}
	}
	if !s.Signals[0].SaturatedSince.IsZero() {
		t.Error("the saturation never ended")
	}
}

func TestFallback(t *testing.T) {
	f := func(mode MissingMode, floor, want int32) {
		t.Helper()
		p := utilPolicy()
		p.Missing, p.MissingFloor, p.MissingAfter = mode, floor, 30*time.Second
		got, _ := run(p, State{}, func(_ int, cur int32, now time.Time) Observation {
			v := make([]float64, cur)
			for i := range v {
				v[i] = math.NaN()
			}
			return seen(now, v...)
		}, 40, 4)
		if got[29] != 4 || got[39] != want {
			t.Errorf("mode %d: %d after 29 s and %d after 39 s, want 4 and %d", mode, got[29], got[39], want)
		}
	}
	f(MissingHold, 0, 4)
	f(MissingMax, 0, 20)
	f(MissingFloor, 7, 7)
	f(MissingFloor, 2, 4)
}

func TestRateCountsWhatReallyChanged(t *testing.T) {
	p := utilPolicy()
	p.Up.Policies = []RatePolicy{{Value: 2, Period: 10 * time.Second}}
	p.Signals[0].Ceiling = 0
	got, _ := run(p, State{}, func(_ int, cur int32, now time.Time) Observation {
		v := make([]float64, cur)
		for i := range v {
			v[i] = 600
		}
		return seen(now, v...)
	}, 25, 1)
	for _, c := range []struct {
		at   int
		want int32
	}{{0, 3}, {5, 3}, {11, 5}, {22, 7}} {
		if got[c.at] != c.want {
			t.Errorf("after %d s: %d, want %d (all: %v)", c.at, got[c.at], c.want, got)
		}
	}
	// Advice that nobody follows uses up no allowance.
	_, s := run(p, State{}, func(_ int, _ int32, now time.Time) Observation { return seen(now, 600) }, 25, 1)
	if len(s.Changes) != 0 {
		t.Errorf("changes were recorded that never happened: %+v", s.Changes)
	}
}

func TestVictims(t *testing.T) {
	f := func(o Observation, replicas int, want ...string) {
		t.Helper()
		p := utilPolicy()
		v := view{p: &p, o: &o, now: t0}
		if got := v.victims(replicas); !slices.Equal(got, want) {
			t.Errorf("victims = %v, want %v", got, want)
		}
	}
	o := seen(t0, 50, 10)
	o.Pods[0].Name, o.Pods[1].Name = "busy", "idle"
	o = with(with(o, t0, 1, Starting, time.Second), t0, 1, Unschedulable, time.Second)
	o.Pods[2].Name, o.Pods[3].Name = "loading", "stuck"
	f(o, 1, "stuck", "loading", "idle")

	o = seen(t0, 5, math.NaN(), math.NaN())
	o.Pods[0].Name, o.Pods[1].Name, o.Pods[2].Name = "readable", "blind-1", "blind-2"
	o.Pods[0].Since = t0.Add(-time.Minute)
	f(o, 1, "blind-1", "blind-2")
}

// Of 3 replicas one is on its way out, and its pod is not terminating yet, when the next decision takes another one
// away: both are victims.
func TestVictimsOfTwoScaleDowns(t *testing.T) {
	o := seen(t0, 30, 2, 4)
	o.Pods[0].Name, o.Pods[1].Name, o.Pods[2].Name = "busy", "first", "second"
	o.Replicas = 2
	d, _ := Decide(utilPolicy(), o, State{}, t0)
	if want := []string{"first", "second"}; d.Replicas != 1 || !slices.Equal(d.Victims, want) {
		t.Errorf("2 → %d, victims %q, want %q: %s", d.Replicas, d.Victims, want, d.Sentence())
	}
}

func TestReadingsFromWhenMoreServedDoNotLower(t *testing.T) {
	p := utilPolicy()
	// Four at 25 % become two, which is right; the two still show 25 % from when
	// four shared the load, which is not what they carry now.
	_, s := Decide(p, seen(t0, 25, 25, 25, 25), State{}, t0)
	now := t0.Add(500 * time.Millisecond)
	o := seen(now, 25, 25)
	d, s := Decide(p, o, s, now)
	if want := "Utilization: 2 serving × 25 % ÷ target 60 % = 0.83, 1.67 before some replicas ended: 2 replicas"; d.Replicas != 2 || d.Sentence() != want {
		t.Fatalf("%d replicas: %s", d.Replicas, d.Sentence())
	}
	now = now.Add(4 * time.Second)
	if d, _ := Decide(p, seen(now, 15, 15), s, now); d.Replicas != 1 {
		t.Errorf("with readings of its own it stays at %d: %s", d.Replicas, d.Sentence())
	}
}

func TestSentences(t *testing.T) {
	p := utilPolicy()
	p.Startup = 90 * time.Second
	d, _ := Decide(p, with(seen(t0, 97, 97), t0, 3, Starting, 10*time.Second), State{}, t0)
	want := "keep 5 until those that start serve: 2 serving at 97 % are saturated, so the load may need more; 3 starting (ready in about 80 s)"
	if !strings.Contains(d.Sentence(), want) {
		t.Errorf("got  %q\nwant … %q", d.Sentence(), want)
	}
	for wait, want := range map[time.Duration]string{0: "keep 2: no signal has a value yet, ", 40 * time.Second: "keep 2: all signals have been missing for 40 s, "} {
		if s := (&Step{Rule: RuleMissing, Before: 2, After: 2, Facts: facts.Missing{Wait: wait}}).Sentence(); !strings.HasPrefix(s, want) {
			t.Errorf("%q, want %q", s, want)
		}
	}
}

// BenchmarkDecide is one decision over eight replicas: by a utilisation, and by
// requests with a target that is learned from both limits and arrivals that are counted.
func BenchmarkDecide(b *testing.B) {
	f := func(name string, p Policy, show func(r *Replica, batch float64, now time.Time)) {
		p.Down.Window = DefaultDownWindow
		b.Run(name, func(b *testing.B) {
			o := seen(t0, 60, 70, 80, 90, 60, 70, 80, 90)
			var s State
			b.ReportAllocs()
			for i := range b.N {
				now := t0.Add(time.Duration(i) * time.Second)
				for k := range o.Pods {
					o.Pods[k].Readings[0].At = now
					show(&o.Pods[k], float64(6+(i+k)%5), now)
				}
				_, s = Decide(p, o, s, now)
			}
		})
	}
	f("utilization", utilPolicy(), func(*Replica, float64, time.Time) {})
	learned := sloPolicy(8, 0.015)
	learned.Signals[0].FirstLimit = 2
	f("learned", learned, func(r *Replica, batch float64, now time.Time) {
		r.Readings[0].Value = batch
		r.Arrivals = append(r.Arrivals[:0], Reading{Value: 2, At: now, OK: true})
		r.Paces = append(r.Paces[:0], Pace{Batch: batch, TokenSeconds: 0.008 + batch/4000, FirstTokenSeconds: 0.1 + batch/100, FirstTokensPerSecond: 2, At: now, OK: true})
	})
}

// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"testing"
	"time"
)

// A workload that nobody uses is scaled down after Policy.Idle.After, whatever keeps its
// signals up, such as the memory of its GPUs; and not while something else asks for it.
func TestIdle(t *testing.T) {
	type world struct {
		p        Policy
		used     []Reading // of the serving replicas
		starting int
		total    float64
	}
	f := func(want int32, what string, change func(*world)) {
		t.Helper()
		w := world{p: Policy{
			Min: 2, Max: 10, KeepZero: true, Idle: IdlePolicy{After: time.Hour}, MaxGPUs: 100, GPUsPerReplica: 1,
			Signals: []Signal{{Name: "memory", Target: 50}}, Up: Rules{Tolerance: 0.1}, Down: Rules{Tolerance: 0.1},
		}, used: []Reading{{OK: true}, {OK: true}, {OK: true}}}
		change(&w)
		var s State
		replicas := int32(len(w.used) + w.starting)
		for n := range 4200 {
			now := t0.Add(time.Duration(n) * time.Second)
			o := Observation{Replicas: replicas, Totals: []Reading{{}, {Value: w.total, At: now, OK: true}}}
			for i := range w.used {
				u := w.used[i]
				u.At = now
				o.Pods = append(o.Pods, Replica{Name: string(rune('a' + i)), Since: t0.Add(-time.Hour), Used: u, Readings: []Reading{{Value: 50, At: now, OK: true}}})
			}
			for range w.starting {
				o.Pods = append(o.Pods, Replica{Name: "new", Phase: Starting, Since: now})
			}
			d, after := Decide(w.p, o, s, now)
			if n < 3599 && d.Replicas != replicas {
				t.Fatalf("%s: %d after %d s: %s", what, d.Replicas, n, d.Sentence())
			}
			if s = after; d.Changes() {
				if d.Replicas != want || d.Rule != RuleIdle {
					t.Errorf("%s: %d replicas by %s, want %d", what, d.Replicas, d.Rule, want)
				}
				return
			}
		}
		if replicas != want {
			t.Errorf("%s: %d replicas stay, want %d", what, replicas, want)
		}
	}
	f(0, "nobody uses it", func(*world) {})
	f(1, "one stays", func(w *world) { w.p.Idle.To = 1 })
	f(3, "no idle", func(w *world) { w.p.Idle = IdlePolicy{} })
	f(3, "one replica is in use", func(w *world) { w.used[1].Value = 1 })
	f(3, "one replica has no value", func(w *world) { w.used[1].OK = false })
	f(0, "one of four is replaced time and again", func(w *world) { w.starting, w.p.Signals[0].Target = 1, 40 })
	for _, by := range []Origin{{Rule: RuleOverride, Text: "override"}} {
		f(3, "an override of the minimum", func(w *world) { w.p.InForce.Min = by })
		f(3, "an override of the maximum", func(w *world) { w.p.InForce.Max = by })
		f(3, "a freeze", func(w *world) { w.p.InForce.Down = by })
	}
	schedule := Origin{Rule: RuleSchedule, Text: "schedule"}
	f(3, "a schedule's minimum", func(w *world) { w.p.InForce.Min = schedule })
	f(0, "a schedule that asks for none", func(w *world) { w.p.Min, w.p.InForce.Min = 0, schedule })
	zero := 0.0
	queue := func(w *world) {
		w.p.Signals = append(w.p.Signals, Signal{Name: "queue", Type: Value, Target: 1000, Activation: &zero})
	}
	f(0, "a queue that is empty", queue)
	f(3, "a queue with entries", func(w *world) { queue(w); w.total = 1 })
}

// A replica that was added is awaited: nobody can use it while it starts.
func TestIdleAwaitsWhatWasAdded(t *testing.T) {
	p := Policy{Max: 10, Startup: 5 * time.Minute, Idle: IdlePolicy{After: time.Minute}, Signals: []Signal{{Name: "memory", Target: 50}}}
	var s State
	for n := range 400 {
		now := t0.Add(time.Duration(n) * time.Second)
		o := seen(now, 99)
		if n >= 10 && n < 310 {
			o = with(o, t0.Add(10*time.Second), 1, Starting, 0)
		}
		if n >= 310 {
			o = with(o, t0.Add(310*time.Second), 1, Serving, 0)
		}
		for k := range o.Pods {
			o.Pods[k].Used = Reading{At: now, OK: o.Pods[k].Phase == Serving}
		}
		d, after := Decide(p, o, s, now)
		if s = after; d.Rule == RuleIdle {
			if n < 310 {
				t.Errorf("idle %d s after one was added that takes 5 min: %s", n-10, d.Sentence())
			}
			return
		}
	}
	t.Error("never idle")
}

// What was removed comes back by hand, by an override, by a signal above its activation and,
// where replicas stay, by use; and not by itself, over a restart and a long pause either.
func TestIdleEnds(t *testing.T) {
	zero := 0.0
	p := Policy{
		Min: 1, Max: 10, KeepZero: true, Idle: IdlePolicy{After: time.Hour},
		Signals: []Signal{{Name: "queue", Type: Value, Target: 1000, Activation: &zero}}, Up: Rules{Tolerance: 0.1}, Down: Rules{Tolerance: 0.1},
	}
	down := State{Since: t0, DecidedAt: t0, LastData: t0, Zeroed: true, Idle: IdleState{Down: true}}
	f := func(want int32, what string, change func(p *Policy, o *Observation, s *State, now *time.Time)) {
		t.Helper()
		p, s, now := p, down, t0.Add(time.Second)
		o := Observation{Totals: []Reading{{OK: true}}}
		change(&p, &o, &s, &now)
		for i := range o.Totals {
			o.Totals[i].At = now
		}
		if d, _ := Decide(p, o, s, now); d.Replicas != want {
			t.Errorf("%s: %d replicas, want %d: %s", what, d.Replicas, want, d.Sentence())
		}
	}
	f(0, "nothing happens", func(*Policy, *Observation, *State, *time.Time) {})
	f(0, "no values", func(_ *Policy, o *Observation, _ *State, _ *time.Time) { o.Totals = nil })
	f(0, "a long pause", func(_ *Policy, _ *Observation, s *State, now *time.Time) {
		*now = t0.Add(24 * time.Hour)
		s.Since = time.Time{}
	})
	f(0, "the clock goes back", func(_ *Policy, _ *Observation, _ *State, now *time.Time) { *now = t0.Add(-time.Hour) })
	f(1, "a request in the queue", func(_ *Policy, o *Observation, _ *State, _ *time.Time) { o.Totals[0].Value = 1 })
	f(2, "an override", func(p *Policy, _ *Observation, _ *State, _ *time.Time) {
		p.Min, p.InForce.Min, p.KeepZero = 2, Origin{Rule: RuleOverride, Text: "override"}, false
	})
	f(2, "a schedule", func(p *Policy, _ *Observation, _ *State, _ *time.Time) {
		p.Min, p.InForce.Min = 2, Origin{Rule: RuleSchedule, Text: "schedule"}
	})
	f(1, "by hand", func(_ *Policy, o *Observation, _ *State, _ *time.Time) { o.Replicas = 1 })
	f(1, "the spec no longer has idle", func(p *Policy, _ *Observation, _ *State, _ *time.Time) { p.Idle = IdlePolicy{} })
	kept := func(used float64) func(p *Policy, o *Observation, s *State, now *time.Time) {
		return func(p *Policy, o *Observation, s *State, now *time.Time) {
			p.Idle.To, o.Replicas, s.Replicas = 1, 1, 1
			p.Signals = []Signal{{Name: "memory", Target: 10}}
			o.Totals = nil
			o.Pods = []Replica{{Name: "a", Since: t0.Add(-time.Hour), Used: Reading{Value: used, At: *now, OK: true}, Readings: []Reading{{Value: 50, At: *now, OK: true}}}}
		}
	}
	f(1, "the one that stays is not used", kept(0))
	f(5, "the one that stays is used", kept(1))
}

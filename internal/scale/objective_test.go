// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/facts"
	"github.com/gpupilot/gpupilot/internal/scale/promise"
)

// llm is a server with these costs of a token in seconds.
type llm struct{ idle, perPrompt, perOutput float64 }

// observe is n servers that together get requests/s of this size, read a second ago.
func (s llm) observe(now time.Time, n int, requests, prompt, output float64) Observation {
	o := Observation{Replicas: int32(n)}
	each := requests / float64(n)
	busy := min(0.95, s.perPrompt*each*prompt+s.perOutput*each*output)
	token := s.idle / (1 - busy)
	missed := 0.0
	if token > 0.015 {
		missed = each
	}
	at := now.Add(-time.Second)
	for range n {
		o.Pods = append(o.Pods, Replica{
			Phase: Serving, Since: t0.Add(-time.Hour),
			Readings: []Reading{{Value: each * output * token, At: at, OK: true}},
			Arrivals: []Reading{{Value: each, At: at, OK: true}},
			Paces: []Pace{{
				Batch: each * output * token, TokenSeconds: token, FirstTokenSeconds: 0.1, FirstTokensPerSecond: each, At: at, OK: true,
				Counted: true, PromptTokensPerSecond: each * prompt, OutputTokensPerSecond: each * output, EndedPerSecond: each, MissedPerSecond: missed,
			}},
		})
	}
	return o
}

func objectivePolicy(objective float64) Policy {
	p := sloPolicy(8, 0.015)
	p.Signals[0].Objective, p.Down.Window, p.Startup = objective, Auto, 2*time.Minute
	return p
}

// pursue has as many servers as are decided, for some seconds of a load, with learning.
func pursue(p Policy, s State, n int, from, seconds int, load func(second int) (requests, prompt, output float64)) (Decision, State) {
	var d Decision
	for i := from; i < from+seconds; i++ {
		now := t0.Add(time.Duration(i) * time.Second)
		requests, prompt, output := load(i)
		if d, s = Decide(p, llm{8.26e-3, 0.0565e-3, 0.245e-3}.observe(now, n, requests, prompt, output), s, now); d.Changes() {
			n = int(d.Replicas)
		}
		if i%300 == 299 {
			s = Learn(p, s)
		}
	}
	return d, s
}

func wave(i int) (requests, prompt, output float64) {
	return 20 + 12*math.Sin(float64(i)/400), 1000, 200
}

// Within minutes, without a request in flight being worth eight of anything, the load's
// tokens decide.
func TestAnObjectiveDecidesByTokens(t *testing.T) {
	d, s := pursue(objectivePolicy(0.99), State{}, 4, 0, 180, wave)
	f := d.Steps[0].Facts.(*facts.Demand).Plan
	if f == nil || f.Objective != 0.99 || f.BusyTarget <= 0 {
		t.Fatalf("facts %+v", f)
	}
	requests, prompt, output := wave(179)
	busy := requests * (prompt*0.0565e-3 + output*0.245e-3)
	if math.Abs(f.Busy/busy-1) > 0.35 {
		t.Errorf("the load keeps %.2f replicas busy, want about %.2f", f.Busy, busy)
	}
	for _, want := range []string{"requests: ", " replicas now", "To keep 99 % of the requests within "} {
		if got := d.Sentence(); !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
	if plan := s.Signals[0].Promise.Plan; plan.Target != 0 {
		t.Errorf("a plan after three minutes: %+v", plan)
	}
	d, s = pursue(objectivePolicy(0.99), s, int(d.Replicas), 180, 4*3600, wave)
	plan := s.Signals[0].Promise.Plan
	if plan.Target <= 0 || plan.Share > 0.01 || plan.Replicas < 4 || plan.Replicas > 15 {
		t.Errorf("plan %+v, %d replicas", plan, d.Replicas)
	}
}

// While a token's cost is measured, requests in flight ask for nothing: answers may be long.
// Then the load's tokens decide, seconds after the first one.
func TestANewWorkloadIsMeasuredFirst(t *testing.T) {
	long := func(int) (float64, float64, float64) { return 2, 100, 1000 } // 0.6 of a replica, more than 8 in flight
	d, s := pursue(objectivePolicy(0.99), State{}, 1, 0, 4, long)
	if d.Replicas != 1 || d.Rule != RuleSettling || !strings.Contains(d.Sentence(), "keep 1: requests measures for a few seconds how much of a replica a token uses") {
		t.Errorf("%d replicas: %s", d.Replicas, d.Sentence())
	}
	d, _ = pursue(objectivePolicy(0.99), s, 1, 4, 4, long)
	if f := d.Steps[0].Facts.(*facts.Demand).Plan; f == nil || f.BusyTarget <= 0 || d.Replicas > 3 {
		t.Errorf("%d replicas: %s", d.Replicas, d.Sentence())
	}
}

// Tokens are awaited for ten seconds after the first requests: a counter needs two scrapes, and prompts come first.
func TestTokensAreAwaited(t *testing.T) {
	p, s := objectivePolicy(0.99), State{}
	for i := range 14 {
		now := t0.Add(time.Duration(i) * time.Second)
		requests := 20.0 // far more than 8 in flight
		if i < 3 {
			requests = 0
		}
		o := llm{8.26e-3, 0.0565e-3, 0.245e-3}.observe(now, 1, requests, 100, 1000)
		o.Pods[0].Paces[0].Counted = i%2 == 0
		o.Pods[0].Paces[0].TokenSeconds, o.Pods[0].Paces[0].OutputTokensPerSecond = 0, 0
		var d Decision
		d, s = Decide(p, o, s, now)
		if awaited := i >= 3 && i < 13; awaited != (d.Rule == RuleSettling) || awaited && d.Replicas != 1 || i == 13 && d.Replicas < 2 {
			t.Errorf("after %d s: %d replicas: %s", i, d.Replicas, d.Sentence())
		}
	}
}

// Twice the prompt is more work at as many requests in flight.
func TestLongPromptsAreWork(t *testing.T) {
	p := objectivePolicy(0.99)
	short := func(i int) (float64, float64, float64) { r, _, o := wave(i); return r, 500, o }
	long := func(i int) (float64, float64, float64) { r, _, o := wave(i); return r, 5000, o }
	d, s := pursue(p, State{}, 4, 0, 3600, short)
	longer, _ := pursue(p, s, int(d.Replicas), 3600, 900, long)
	if longer.Replicas < 2*d.Replicas {
		t.Errorf("%d replicas for short prompts, %d for long ones", d.Replicas, longer.Replicas)
	}
}

// Servers that do not count tokens are scaled by their requests in flight, once tokens have been awaited.
func TestAnObjectiveWithoutTokens(t *testing.T) {
	with, without := objectivePolicy(0.99), objectivePolicy(0)
	var a, b State
	for i := range 900 {
		now := t0.Add(time.Duration(i) * time.Second)
		requests, prompt, output := wave(i)
		o := llm{8.26e-3, 0.0565e-3, 0.245e-3}.observe(now, 5, requests, prompt, output)
		for k := range o.Pods {
			o.Pods[k].Paces[0].Counted = false
		}
		var x, y Decision
		x, a = Decide(with, o, a, now)
		y, b = Decide(without, o, b, now)
		if i >= 10 && !reflect.DeepEqual(x, y) {
			t.Fatalf("with an objective %+v, without %+v", x, y)
		}
	}
}

// While little is recorded of its load, a workload loses a replica in two minutes.
func TestAnObjectiveDescendsSlowlyAtFirst(t *testing.T) {
	quiet := func(int) (float64, float64, float64) { return 2, 100, 10 }
	d, _ := pursue(objectivePolicy(0.99), State{}, 20, 0, 600, quiet)
	if d.Replicas < 15 || d.Replicas > 16 {
		t.Errorf("%d of 20 replicas after ten minutes: want 15 or 16: %s", d.Replicas, d.Sentence())
	}
}

// A replica that says nothing may carry any load, and a lie is no number.
func TestAnObjectiveWithoutAReplica(t *testing.T) {
	p := objectivePolicy(0.99)
	d, s := pursue(p, State{}, 6, 0, 5*3600, wave)
	n := int(d.Replicas)
	quiet := func(int) (float64, float64, float64) { return 0.5, 100, 10 }
	for i := 5 * 3600; i < 8*3600; i++ {
		now := t0.Add(time.Duration(i) * time.Second)
		requests, prompt, output := quiet(i)
		o := llm{8.26e-3, 0.0565e-3, 0.245e-3}.observe(now, n, requests, prompt, output)
		o.Pods[0].Readings[0].OK, o.Pods[0].Paces[0].OK = false, false
		if d, s = Decide(p, o, s, now); d.Replicas < int32(n) {
			t.Fatalf("%d instead of %d replicas after %d s, though one says nothing: %s", d.Replicas, n, i-5*3600, d.Sentence())
		}
	}
	for _, lie := range []float64{math.NaN(), math.Inf(1), -1, 1e300} {
		o := llm{8.26e-3, 0.0565e-3, 0.245e-3}.observe(s.DecidedAt.Add(time.Second), n, 20, 1000, 200)
		for k := range o.Pods {
			o.Pods[k].Paces[0].PromptTokensPerSecond = lie
		}
		after, _ := Decide(p, o, s, s.DecidedAt.Add(time.Second))
		if after.Replicas < int32(n) || after.Replicas > int32(2*n) {
			t.Errorf("prompt tokens/s of %v: %d replicas: %s", lie, after.Replicas, after.Sentence())
		}
	}
}

// The user's own window holds beside the plan's.
func TestAnObjectiveKeepsTheWindowOfTheBehavior(t *testing.T) {
	p := objectivePolicy(0.99)
	_, s := pursue(p, State{}, 6, 0, 3*3600, wave)
	fall := func(window time.Duration) int {
		p := p
		p.Down.Window = window
		d, s := pursue(p, s, 8, 3*3600, 600, func(int) (float64, float64, float64) { return 60, 1000, 200 })
		n := d.Replicas
		s.Signals = slices.Clone(s.Signals)
		s.Signals[0].Promise.Plan = promise.Plan{Target: 0.3, Window: 60}
		for i := range 3600 {
			now := s.DecidedAt.Add(time.Second)
			if d, s = Decide(p, llm{8.26e-3, 0.0565e-3, 0.245e-3}.observe(now, int(n), 5, 1000, 200), s, now); d.Replicas < n {
				return i
			}
		}
		return 3600
	}
	if auto, given := fall(Auto), fall(20*time.Minute); auto > 120 || given < 1150 {
		t.Errorf("the first replica is removed after %d s, and with a window of 20 min after %d s", auto, given)
	}
}

// A stricter objective, and a stricter limit, never take fewer replicas over a load.
func TestAStricterPromiseTakesNoFewerReplicas(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 3 {
		period, swing := 200+600*rng.Float64(), 14*rng.Float64()
		load := func(i int) (float64, float64, float64) { return 16 + swing*math.Sin(float64(i)/period), 1000, 200 }
		before := 0.0
		for _, objective := range []float64{0.9, 0.95, 0.98, 0.99, 0.999} {
			p := objectivePolicy(objective)
			d, s := pursue(p, State{}, 4, 0, 2*3600, load)
			sum, n := 0.0, int(d.Replicas)
			for i := 2 * 3600; i < 3*3600; i++ {
				d, s = pursue(p, s, n, i, 1, load)
				n = int(d.Replicas)
				sum += float64(n)
			}
			if sum < before*0.97 {
				t.Errorf("objective %v: %.0f replica-seconds, and %.0f with the one before", objective, sum, before)
			}
			before = sum
		}
	}
}

func BenchmarkDecideByAnObjective(b *testing.B) {
	p := objectivePolicy(0.99)
	_, s := pursue(p, State{}, 6, 0, 3*3600, wave)
	now := s.DecidedAt.Add(time.Second)
	o := llm{8.26e-3, 0.0565e-3, 0.245e-3}.observe(now, 10, 20, 1000, 200)
	for b.Loop() {
		Decide(p, o, s, now)
	}
}

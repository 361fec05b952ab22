// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale/drain"
)

// pour turns any bytes into policies and histories of observations, hostile
// values, ages and phases included. When the bytes run out it pours zeros.
type pour struct{ data []byte }

func (p *pour) small() int32 {
	if len(p.data) == 0 {
		return 0
	}
	b := p.data[0]
	p.data = p.data[1:]
	return int32(b)
}

func (p *pour) seconds(most int32) time.Duration { return time.Duration(p.small()%most) * time.Second }

// value is mostly what signals tell, and sometimes anything at all.
func (p *pour) value() float64 {
	switch k := p.small(); {
	case k < 200:
		return float64(k) / 2
	case k < 220:
		return float64(k-200) * 1000
	case k < 250 && len(p.data) >= 8:
		x := math.Float64frombits(binary.LittleEndian.Uint64(p.data))
		p.data = p.data[8:]
		return x
	default:
		return []float64{math.NaN(), math.Inf(1), math.Inf(-1), -5, 1e308, 0}[k%6]
	}
}

func (p *pour) rules(window time.Duration) Rules {
	r := Rules{Window: window, Tolerance: float64(p.small()%30) / 100, Select: Select(p.small() % 8)}
	if r.Select > SelectDisabled {
		r.Select = SelectMax
	}
	for range p.small() % 3 {
		r.Policies = append(r.Policies, RatePolicy{Percent: p.small()%2 == 0, Value: 1 + p.small()%100, Period: time.Second + p.seconds(120)})
	}
	return r
}

// policy is any that package policy can make.
func (p *pour) policy() Policy {
	out := Policy{
		Min: p.small() % 10, Startup: p.seconds(250), Missing: MissingMode(p.small() % 3), MissingFloor: p.small(),
		MaxGPUs: p.small() % 40, GPUsPerReplica: p.small() % 9,
	}
	out.Max = max(1, out.Min+p.small()%50)
	out.Up, out.Down = p.rules(p.seconds(20)), p.rules(p.seconds(250))
	if p.small()%2 == 0 {
		out.Down.Window = Auto
	}
	all := []Signal{
		{Name: "Utilization", Unit: "%", Target: 60, Ceiling: 100, Aggregate: gpu.Mean},
		{Name: "running", Target: 8, Aggregate: gpu.Sum, Law: Batching, Limit: float64(p.small()%3) * 0.02, FirstLimit: float64(p.small() % 2)},
		{Name: "waiting", Target: 2, Aggregate: gpu.Sum},
		{Name: "total", Type: Value, Target: 100, Aggregate: gpu.Sum},
	}
	for _, s := range all[p.small()%4:] {
		out.Signals = append(out.Signals, s)
		if p.small()%2 == 0 {
			break
		}
	}
	if out.Min == 0 {
		zero := 0.0
		out.Signals = append(out.Signals, Signal{Name: "queue", Target: 10, Activation: &zero})
	}
	out.Formula = formulaOf(out.MissingFloor%5, out.Signals) // no further byte: the seeds keep their meaning
	return out
}

// formulaOf is a formula that asks for no fewer replicas if a signal asks for more; nil for a kind below 3.
func formulaOf(kind int32, signals []Signal) *Formula {
	if kind < 3 {
		return nil
	}
	f := &Formula{Text: "sum or max", Evaluate: func(x []float64) (sum float64, err error) {
		for _, v := range x {
			if sum += v; kind == 3 {
				sum = max(sum-v, v)
			}
		}
		return sum, nil
	}}
	for i := range signals {
		f.Terms = append(f.Terms, Term{Name: signals[i].Name, Signals: []int{i}, Replicas: true})
	}
	return f
}

// moment is what is seen at a time.
type moment struct {
	now time.Time
	o   Observation
}

// next is what is seen next, when cur was asked for: mostly a workload as it
// might be, sometimes anything. The clock may go back.
func (p *pour) next(pol *Policy, now time.Time, cur int32) moment {
	now = now.Add(p.seconds(40) - 10*time.Second*time.Duration(p.small()/250))
	if p.small()%4 == 0 {
		return moment{now, p.observation(pol, now)}
	}
	o := Observation{Replicas: cur, Version: "2"}
	serving, of := p.small()%4, p.small() // all, all but one, half, all
	values := []float64{}
	for range pol.Signals {
		values = append(values, []float64{0, 10, 58, 80, 95, 100, 8, 2}[p.small()%8])
	}
	pace := float64(p.small()) / 10_000 // seconds for a token, of a small batch
	for i := range min(cur, 30) {
		r := Replica{Name: string('a' + i), Since: now.Add(-time.Hour), Phase: Serving, Version: "1"}
		if i%4 < serving { // a rollout
			r.Version = "2"
		}
		if serving == 1 && i == cur-1 || serving == 2 && i >= cur/2 {
			r.Phase, r.Since = Phase(1+of%2), now.Add(-time.Duration(of)*time.Second)
		}
		for _, v := range values {
			r.Readings = append(r.Readings, Reading{Value: v, At: now.Add(-time.Second), OK: true})
			r.Paces = append(r.Paces, Pace{Batch: v, TokenSeconds: pace * (1 + v/40), FirstTokenSeconds: pace * v, FirstTokensPerSecond: 2, At: now.Add(-time.Second), OK: true})
			r.Arrivals = append(r.Arrivals, Reading{Value: v * pace * 1000, At: now.Add(-time.Second), OK: pace > 0})
		}
		o.Pods = append(o.Pods, r)
	}
	for _, v := range values {
		o.Totals = append(o.Totals, Reading{Value: v, At: now, OK: pol.Min == 0})
	}
	return moment{now, o}
}

func (p *pour) observation(pol *Policy, now time.Time) Observation {
	reading := func() Reading {
		return Reading{Value: p.value(), At: now.Add(3*time.Second - p.seconds(10)), OK: p.small()%8 != 0}
	}
	versions := []string{"", "1", "2", "3"}
	o := Observation{Replicas: p.small() % 64, Version: versions[p.small()%4]}
	for i := range p.small() % 12 {
		r := Replica{Name: string('a' + i), Phase: Phase(p.small() % 8), Since: now.Add(10*time.Second - 2*p.seconds(250))}
		r.Version = versions[p.small()%4]
		if r.Phase > Terminating {
			r.Phase = Serving
		}
		for range pol.Signals {
			r.Readings = append(r.Readings, reading())
			r.Paces = append(r.Paces, Pace{Batch: p.value(), TokenSeconds: p.value(), FirstTokenSeconds: p.value(), FirstTokensPerSecond: p.value(), At: now.Add(-p.seconds(10)), OK: p.small()%4 != 0})
			r.Arrivals = append(r.Arrivals, reading())
		}
		o.Pods = append(o.Pods, r)
	}
	if p.small()%4 == 0 || pol.Min == 0 {
		for range pol.Signals {
			o.Totals = append(o.Totals, reading())
		}
	}
	return o
}

// FuzzDecide holds what must be true of any history of any policy.
func FuzzDecide(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 20, 30, 40, 0, 0, 4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0x59, 0x40, 2, 1})
	rnd := uint32(1)
	for range 300 {
		b := make([]byte, 300)
		for i := range b {
			rnd = rnd*1664525 + 1013904223
			b[i] = byte(rnd >> 24)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in := &pour{data}
		p := in.policy()
		var s, other State
		m, cur := moment{now: t0}, in.small()%20
		for len(in.data) > 0 {
			m = in.next(&p, m.now, cur)
			before, seen := clone(t, s), m.o
			d, next := Decide(p, m.o, s, m.now)
			if d.Replicas < p.Min || d.Replicas > p.Max {
				t.Fatalf("%d replicas outside [%d, %d]", d.Replicas, p.Min, p.Max)
			}
			if !reflect.DeepEqual(before, clone(t, s)) || !same(seen, m.o) {
				t.Fatal("Decide changed what it was given")
			}
			if again, n := Decide(p, m.o, s, m.now); !same(d, again) || !same(next, n) {
				t.Fatalf("a replay gives another decision:\n%s\n%s", d.Sentence(), again.Sentence())
			}
			// A controller that restarted before each decision.
			restarted, n := Decide(p, m.o, clone(t, other), m.now)
			if !same(d, restarted) {
				t.Fatalf("after a restart:\n%s\nwithout:\n%s", restarted.Sentence(), d.Sentence())
			}
			other = n
			victims(t, &d, m.o)
			missingNeverLowers(t, p, m, s)
			moreNeverYieldsFewer(t, p, m, s)
			overridesHold(t, p, m, s)
			s, cur = next, d.Replicas
		}
	})
}

// clone is a state by way of its JSON, as a status keeps it.
func clone(t *testing.T, s State) (out State) {
	t.Helper()
	b, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// same compares values by their JSON. NaN, which JSON cannot encode, is removed first.
func same(a, b any) bool {
	x, err1 := json.Marshal(finite(a))
	y, err2 := json.Marshal(finite(b))
	return err1 == nil && err2 == nil && bytes.Equal(x, y)
}

// finite is v, of an observation only what is not a reading.
func finite(v any) any {
	if o, ok := v.(Observation); ok {
		names := []string{}
		for _, p := range o.Pods {
			names = append(names, p.Name)
		}
		return names
	}
	return v
}

// victims are pods of the workload, as many as go, each once.
func victims(t *testing.T, d *Decision, o Observation) {
	t.Helper()
	running, leaving := 0, 0
	for _, p := range o.Pods {
		if p.Phase != Terminating {
			running++
		}
	}
	if d.Replicas < d.Current {
		leaving = min(running, max(running, int(d.Current))-int(d.Replicas))
	}
	if n := len(d.Victims); n < leaving || n > min(leaving+3, running) || n > leaving && !d.Rollout.InProgress {
		t.Fatalf("%d victims of %d that go", len(d.Victims), leaving)
	}
	seen := map[string]bool{}
	for _, v := range d.Victims {
		known := slices.ContainsFunc(o.Pods, func(p Replica) bool { return p.Name == v && p.Phase != Terminating })
		if !known || seen[v] {
			t.Fatalf("victims %q", d.Victims)
		}
		seen[v] = true
	}
}

// missingNeverLowers: when nothing can be read, or one of several signals
// cannot, nothing goes below what there is, but for bounds and budget.
func missingNeverLowers(t *testing.T, p Policy, m moment, s State) {
	t.Helper()
	floor := min(m.o.Replicas, p.Max)
	if p.MaxGPUs > 0 && p.GPUsPerReplica > 0 {
		floor = min(floor, max(p.MaxGPUs/p.GPUsPerReplica, p.Min))
	}
	for lost := -1; lost < len(p.Signals); lost++ { // -1: all of them
		blind := m.o
		blind.Totals = without(m.o.Totals, lost)
		blind.Pods = slices.Clone(m.o.Pods)
		for i := range blind.Pods {
			blind.Pods[i].Readings = without(m.o.Pods[i].Readings, lost)
		}
		if d, _ := Decide(p, blind, s, m.now); d.Replicas < floor {
			t.Fatalf("without signal %d: %d replicas, below the current %d: %s", lost, d.Replicas, floor, d.Sentence())
		}
	}
}

// overridesHold: a number is held whatever is seen, a frozen direction does not change,
// both within the budget; and what others set to 0 stays 0.
func overridesHold(t *testing.T, spec Policy, m moment, s State) {
	t.Helper()
	by := Origin{Rule: RuleOverride, Text: "override"}
	budgeted := int32(math.MaxInt32)
	if spec.MaxGPUs > 0 && spec.GPUsPerReplica > 0 {
		budgeted = max(spec.MaxGPUs/spec.GPUsPerReplica, spec.Min)
	}
	for _, n := range []int32{0, 1, spec.Max + 3} {
		held := spec
		held.Min, held.Max = n, n
		held.InForce = InForce{Min: by, Max: by, OverBudget: spec.Min}
		if d, _ := Decide(held, m.o, s, m.now); d.Replicas != min(n, budgeted) {
			t.Fatalf("held at %d, budget %d: %s", n, budgeted, d.Sentence())
		}
	}
	frozen := spec
	frozen.InForce = InForce{Up: by, Down: by, OverBudget: spec.Min}
	if d, _ := Decide(frozen, m.o, s, m.now); d.Replicas != min(m.o.Replicas, budgeted) {
		t.Fatalf("frozen at %d, budget %d: %s", m.o.Replicas, budgeted, d.Sentence())
	}
	if spec.KeepZero = true; m.o.Replicas == 0 && spec.Min > 0 {
		s.Zeroed = false
		if d, next := Decide(spec, m.o, s, m.now); d.Replicas != 0 || next.Zeroed {
			t.Fatalf("set to 0 by others: %s", d.Sentence())
		}
		s.Zeroed = true
		if d, _ := Decide(spec, m.o, s, m.now); d.Replicas < spec.Min {
			t.Fatalf("set to 0 by the engine: %s", d.Sentence())
		}
	}
}

func without(r []Reading, lost int) []Reading {
	if lost < 0 || lost >= len(r) {
		if lost < 0 {
			return nil
		}
		return r
	}
	out := slices.Clone(r)
	out[lost] = Reading{}
	return out
}

// moreNeverYieldsFewer: from the same state, more of every signal.
func moreNeverYieldsFewer(t *testing.T, p Policy, m moment, s State) {
	t.Helper()
	raise := func(in []Reading) []Reading {
		out := slices.Clone(in)
		for i, r := range out {
			if r.OK && r.Value >= 0 && r.Value < 1e6 {
				out[i].Value = r.Value*1.3 + 1
			}
		}
		return out
	}
	more := m.o
	more.Totals = raise(m.o.Totals)
	more.Pods = slices.Clone(m.o.Pods)
	for i := range more.Pods {
		more.Pods[i].Readings, more.Pods[i].Arrivals = raise(m.o.Pods[i].Readings), raise(m.o.Pods[i].Arrivals)
	}
	d, _ := Decide(p, m.o, s, m.now)
	if x, _ := Decide(p, more, s, m.now); x.Replicas < d.Replicas {
		t.Fatalf("more demand yields %d replicas, less yields %d:\n%s\n%s", x.Replicas, d.Replicas, x.Sentence(), d.Sentence())
	}
}

// FuzzDrain holds what must be true of scale-downs that wait for requests, whatever the
// cluster does meanwhile: no serving pod with the gate is removed before it has left, the
// replicas do not fall below what the policy wants, and what is asked for is bounded.
func FuzzDrain(f *testing.F) {
	f.Add([]byte{})
	rnd := uint32(7)
	for range 300 {
		b := make([]byte, 400)
		for i := range b {
			rnd = rnd*1664525 + 1013904223
			b[i] = byte(rnd >> 24)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in := &pour{data}
		p := in.policy()
		p.Drain = time.Second + in.seconds(60)
		ordered := in.small()%2 == 0
		var s State
		m, cur := moment{now: t0}, in.small()%20
		left := map[string]bool{} // pods that the last decision took out of the endpoints
		for len(in.data) > 0 {
			m = in.next(&p, m.now, cur)
			m.o.Ordered = ordered
			m.o.Disruptions = []drain.Budget{{Name: "some", Allowed: in.small() % 4}}
			for i := range m.o.Pods {
				r := &m.o.Pods[i]
				k := in.small()
				r.Ordinal, r.Gated, r.Out = int32(i), k%4 > 0, k%8 > 3
				r.InFlight = Reading{Value: float64(k % 3), At: m.now, OK: k%5 > 0}
				if k%3 == 0 {
					r.Disrupts = []string{"some"}
				}
				if r.Phase == Serving && (left[r.Name] || k == 7) && r.Gated {
					r.Phase = Leaving
				}
			}
			d, next := Decide(p, m.o, s, m.now)
			if again, n := Decide(p, m.o, s, m.now); !same(d, again) || !same(next, n) {
				t.Fatalf("a replay gives another decision:\n%s\n%s", d.Sentence(), again.Sentence())
			}
			if d.Replicas < min(p.Min, m.o.Replicas) || d.Replicas > max(p.Max, m.o.Replicas) {
				t.Fatalf("%d replicas of %d outside [%d, %d]: %s", d.Replicas, m.o.Replicas, p.Min, p.Max, d.Sentence())
			}
			if int(d.Leaving) > len(d.Leave) || len(d.Leave) > len(m.o.Pods) {
				t.Fatalf("%d of %q leave, %d pods", d.Leaving, d.Leave, len(m.o.Pods))
			}
			for i := range m.o.Pods {
				r := &m.o.Pods[i]
				asked := slices.ContainsFunc(s.Drain, func(e drain.Entry) bool { return e.Name == r.Name })
				if r.Phase == Serving && r.Gated && !asked && slices.Contains(d.Victims, r.Name) && !d.Rollout.InProgress && int(m.o.Replicas) >= len(m.o.Pods) {
					t.Fatalf("%s is removed although it serves and was not asked to leave: %s", r.Name, d.Sentence())
				}
			}
			s, cur = next, d.Replicas
			clear(left)
			for _, name := range d.Leave {
				left[name] = true
			}
		}
	})
}

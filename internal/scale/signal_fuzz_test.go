// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// FuzzSignals holds that signals do not influence each other, in any history of
// any policy: their order does not matter, one that wants less changes nothing,
// and one that is removed and added again has no memory.
func FuzzSignals(f *testing.F) {
	rng := rand.New(rand.NewPCG(11, 12))
	for range 300 {
		b := make([]byte, 100+rng.IntN(1500))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(signalsAreIndependent)
}

func signalsAreIndependent(t *testing.T, data []byte) {
	in := &pour{data}
	p, order := in.policy(), []int{}
	p.Formula = nil // which makes them depend on each other
	for i := range p.Signals {
		order = slices.Insert(order, int(in.small())%(i+1), i)
	}
	at := int(in.small()) % (len(p.Signals) + 1) // where a signal is added
	m, cur := moment{now: t0}, in.small()%20
	var s, reordered, extended State
	for extend := true; len(in.data) > 0; {
		m = in.next(&p, m.now, cur)
		d, next := Decide(p, m.o, s, m.now)
		want := result{&d, &next}
		reordered = want.isOrderIndependent(t, p, m, order, reordered)
		if extend {
			extended, extend = want.ignoresLessDemand(t, in.extend(p, m, at), extended)
		}
		returnsClean(t, p, m, int(in.small())%len(p.Signals), s)
		s, cur = next, d.Replicas
	}
}

// result is what Decide returned, and what it must return again.
type result struct {
	*Decision
	state *State
}

// isOrderIndependent fails unless the result is the same with the signals in another
// order.
func (want result) isOrderIndependent(t *testing.T, p Policy, m moment, order []int, s State) State {
	t.Helper()
	p, o := reorder(p, m.o, order)
	d, next := Decide(p, o, s, m.now)
	if d.Replicas != want.Replicas {
		t.Fatalf("in the order %v: %d replicas, want %d:\n%s\n%s", order, d.Replicas, want.Replicas, d.Sentence(), want.Sentence())
	}
	if decider(&d) == decider(want.Decision) && d.Rule != want.Rule {
		t.Fatalf("in the order %v: rule %s, want %s:\n%s\n%s", order, d.Rule, want.Rule, d.Sentence(), want.Sentence())
	}
	a, b := next, *want.state
	a.Signals, b.Signals = sorted(a.Signals), sorted(b.Signals)
	if !same(a, b) {
		t.Fatalf("in the order %v another state:\n%+v\n%+v", order, a, b)
	}
	return next
}

func decider(d *Decision) string {
	for _, in := range d.Inputs {
		if in.Deciding {
			return in.Signal
		}
	}
	return ""
}

func sorted(signals []SignalState) []SignalState {
	return slices.SortedFunc(slices.Values(signals), func(a, b SignalState) int { return cmp.Compare(a.Name, b.Name) })
}

// extension is a policy with one more signal, at index at, and its observation.
type extension struct {
	p  Policy
	m  moment
	at int
}

// extend adds a signal with readings of its own at index at.
func (p *pour) extend(pol Policy, m moment, at int) extension {
	extra := Signal{Name: "extra", Target: 50, Ceiling: 100, Aggregate: gpu.Sum}
	o := m.o
	o.Pods = slices.Clone(m.o.Pods)
	for k := range o.Pods {
		pod := &o.Pods[k]
		pod.Readings = insert(pod.Readings, at, Reading{Value: []float64{0, 3, 20, 98}[p.small()%4], At: m.now.Add(-time.Duration(p.small()%3) * time.Second), OK: true})
		pod.Paces, pod.Arrivals = insert(pod.Paces, at, Pace{}), insert(pod.Arrivals, at, Reading{})
	}
	o.Totals = insert(m.o.Totals, at, Reading{})
	pol.Signals, m.o = slices.Insert(slices.Clone(pol.Signals), at, extra), o
	return extension{pol, m, at}
}

// ignoresLessDemand fails unless the result is the same with the extension, as long as
// its signal wants less than the others. It reports whether that was the case.
func (want result) ignoresLessDemand(t *testing.T, x extension, s State) (State, bool) {
	t.Helper()
	if !wantsLess(x.p, x.m.o, s, x.m.now, x.at) {
		return s, false
	}
	d, next := Decide(x.p, x.m.o, s, x.m.now)
	if d.Replicas != want.Replicas || d.Rule != want.Rule || x.at > 0 && !slices.Equal(d.Victims, want.Victims) {
		t.Fatalf("a signal that wants less made it\n%d %s: %s %q\ninstead of\n%d %s: %s %q",
			d.Replicas, d.Rule, d.Sentence(), d.Victims, want.Replicas, want.Rule, want.Sentence(), want.Victims)
	}
	return next, true
}

// insert puts x at index at; what is missing before it is zero.
func insert[T any](in []T, at int, x T) []T {
	out := make([]T, max(len(in), at), max(len(in), at)+1)
	copy(out, in)
	return slices.Insert(out, at, x)
}

// wantsLess reports whether signal at wants fewer replicas than another one, and
// does not hold the base by readings that predate the last scale-down.
func wantsLess(p Policy, o Observation, s State, now time.Time, at int) bool {
	e := engine{view: view{p: &p, o: &o, now: now, census: takeCensus(&p, &o, now)}}
	s = e.observe(s)
	less, most := outcome{}, int32(-1)
	for i := range p.Signals {
		out, _, _ := e.evaluate(i, s.signal(i, p.Signals[i].Name), nil)
		if i == at {
			less = out
		} else if out.readable {
			most = max(most, out.replicas)
		}
	}
	return less.readable && less.replicas < most
}

// returnsClean removes signal i for one decision. After it, the signal has the
// state of one that is new, and the others have kept theirs.
func returnsClean(t *testing.T, p Policy, m moment, i int, s State) {
	t.Helper()
	var others []int
	for k := range p.Signals {
		if k != i {
			others = append(others, k)
		}
	}
	rest, o := reorder(p, m.o, others)
	_, removed := Decide(rest, o, s, m.now)
	_, kept := Decide(p, m.o, s, m.now)
	if !same(removed.Signals, slices.Delete(slices.Clone(kept.Signals), i, i+1)) {
		t.Fatalf("without signal %d the others have\n%+v, want what they have with it\n%+v", i, removed.Signals, kept.Signals)
	}
	now := m.now.Add(time.Second)
	_, again := Decide(p, m.o, removed, now)
	removed.Signals = nil
	if _, fresh := Decide(p, m.o, removed, now); !same(again.Signals[i], fresh.Signals[i]) {
		t.Fatalf("signal %d came back with\n%+v, want\n%+v", i, again.Signals[i], fresh.Signals[i])
	}
}

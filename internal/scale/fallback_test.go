// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// wantedWith is what must come of signals of which some have no value: wants has what each
// asks for, lost those without a value, for silent. It is written by the documentation, and
// not by the engine.
func wantedWith(wants []int32, fallbacks []Fallback, lost []bool, silent time.Duration, cur, most int32) int32 {
	result, any, holds := int32(0), false, false
	for i, f := range fallbacks {
		asks, counts := wants[i], true
		if lost[i] {
			switch late := silent >= time.Minute; {
			case f.Mode == FallbackIgnore:
				counts = false
			case f.Mode == FallbackMax && late:
				asks = most
			case f.Mode == FallbackReplicas && late:
				asks = f.Replicas
			default:
				holds, counts = true, false
			}
		}
		if counts {
			result, any = max(result, asks), true
		}
	}
	if !any || holds {
		result = max(result, cur)
	}
	return min(max(result, 1), most)
}

// One signal's failure changes nothing but its own part: each combination of 3 of 16.
func TestSignalsFailAlone(t *testing.T) {
	const signals, replicas, most = 16, 8, 40
	rnd := rand.New(rand.NewPCG(3, 3))
	p := Policy{Min: 1, Max: most}
	fallbacks, values, wants := make([]Fallback, signals), make([]float64, signals), make([]int32, signals)
	for i := range signals {
		p.Signals = append(p.Signals, Signal{Name: fmt.Sprint("s", i), Target: 10})
	}
	runs := 0
	decide := func(lost []bool, silent time.Duration) {
		t.Helper()
		runs++
		o := seen(t0, make([]float64, replicas)...)
		for k := range o.Pods {
			o.Pods[k].Readings = make([]Reading, signals)
			for i := range signals {
				o.Pods[k].Readings[i] = Reading{Value: values[i], At: t0.Add(-time.Second), OK: !lost[i]}
			}
		}
		s := State{Since: t0.Add(-time.Hour), LastData: t0, Replicas: replicas, DecidedAt: t0.Add(-time.Second), Serving: replicas}
		for i := range signals {
			x := SignalState{Name: p.Signals[i].Name}
			if lost[i] && silent > 0 {
				x.SilentSince = t0.Add(-silent)
			}
			s.Signals = append(s.Signals, x)
		}
		d, next := Decide(p, o, s, t0)
		if want := wantedWith(wants, fallbacks, lost, silent, replicas, most); d.Replicas != want {
			t.Fatalf("lost %v for %v, fallbacks %+v, wants %v: %d replicas, want %d: %s", lost, silent, fallbacks, wants, d.Replicas, want, d.Sentence())
		}
		for i := range signals {
			if next.Signals[i].SilentSince.IsZero() == lost[i] {
				t.Fatalf("signal %d, lost %v: silent since %v", i, lost[i], next.Signals[i].SilentSince)
			}
		}
	}
	for a := range signals {
		for b := range a {
			for c := range b {
				lost := make([]bool, signals)
				lost[a], lost[b], lost[c] = true, true, true
				for i := range signals {
					fallbacks[i] = Fallback{Mode: FallbackMode(rnd.IntN(4)), Replicas: int32(rnd.IntN(30))}
					wants[i] = int32(1 + rnd.IntN(24))
					values[i] = (float64(wants[i]) - 0.5) * 10 / replicas
					p.Signals[i].Fallback = fallbacks[i]
				}
				for _, silent := range []time.Duration{0, 59 * time.Second, time.Minute, time.Hour} {
					decide(lost, silent)
				}
			}
		}
	}
	if runs != 4*560 {
		t.Errorf("%d combinations", runs)
	}
}

// What a fallback says, and that it asks for nothing while there is nothing to read.
func TestFallbackOfOneSignal(t *testing.T) {
	zero := 0.0
	p := utilPolicy()
	f := func(what string, fallback Fallback, o Observation, silent time.Duration, want int32, says string) {
		t.Helper()
		p.Signals[0].Fallback = fallback
		s := State{Since: t0.Add(-time.Hour), LastData: t0.Add(-silent), Signals: []SignalState{{Name: "Utilization", SilentSince: t0.Add(-silent)}}}
		d, _ := Decide(p, o, s, t0)
		if d.Replicas != want || !strings.Contains(d.Sentence(), says) {
			t.Errorf("%s: %d replicas, want %d and %q: %s", what, d.Replicas, want, says, d.Sentence())
		}
	}
	nan := math.NaN()
	blind := seen(t0, nan, nan)
	f("at once", Fallback{Mode: FallbackReplicas, Replicas: 5}, blind, time.Second, 2, "missing data never scales down")
	f("later", Fallback{Mode: FallbackReplicas, Replicas: 5}, blind, time.Minute, 5, "Utilization has had no value for 60 s: its fallback asks for 5 replicas")
	f("fewer", Fallback{Mode: FallbackReplicas, Replicas: 1}, blind, time.Minute, 1, "asks for 1 replica")
	f("all of them", Fallback{Mode: FallbackMax}, blind, time.Hour, 20, "asks for 20 replicas")
	f("ignored, and there is no other", Fallback{Mode: FallbackIgnore}, blind, time.Hour, 2, "its fallback lets the other signals decide")
	f("while replicas start", Fallback{Mode: FallbackMax}, with(Observation{}, t0, 2, Starting, time.Second), time.Hour, 2, "no replica serves yet")
	p.Min = 0
	p.Signals = append(p.Signals, Signal{Name: "queue", Target: 10, Activation: &zero})
	f("at zero", Fallback{Mode: FallbackMax}, Observation{Totals: []Reading{{}, {At: t0, OK: true}}}, time.Hour, 0, "0 replicas")
}

// The last replica stays for toZero after the last activity, and others go by the window.
func TestToZero(t *testing.T) {
	zero := 0.0
	p := Policy{
		Max: 20, Signals: []Signal{{Name: "queue", Target: 10, Activation: &zero}},
		Down: Rules{Window: 2 * time.Minute, ToZero: 10 * time.Minute},
	}
	at := func(i int) time.Time { return t0.Add(time.Duration(i) * time.Second) }
	load := func(i int) float64 {
		switch {
		case i < 300:
			return 45
		case i == 700: // one request in between
			return 1
		}
		return 0
	}
	var s State
	cur, first := int32(5), map[int32]int{}
	for i := range 2000 {
		o := seen(at(i), make([]float64, cur)...)
		o.Totals = []Reading{{Value: load(i), At: at(i), OK: true}}
		for k := range o.Pods {
			o.Pods[k].Readings = nil
		}
		if i == 1000 { // a restart
			s = clone(t, s)
		}
		var d Decision
		d, s = Decide(p, o, s, at(i))
		if d.Replicas != cur {
			first[d.Replicas] = i
			cur = d.Replicas
		}
		if i == 500 && !strings.Contains(d.Sentence(), "keep 1 for") {
			t.Errorf("it does not say how long the last one stays: %s", d.Sentence())
		}
	}
	if first[1] < 419 || first[1] > 425 {
		t.Errorf("5 to 1 at %d s, want 2 min after the load went", first[1])
	}
	if want := 700 + 600; first[0] < want || first[0] > want+2 || cur != 0 {
		t.Errorf("1 to 0 at %d s, want %d", first[0], want)
	}
}

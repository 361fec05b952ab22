// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"strings"
	"testing"
	"time"
)

// fleet is what n servers show that each have so many requests, to whom so many
// a second came.
func fleet(now time.Time, n int, batch, came float64) Observation {
	o := Observation{Replicas: int32(n)}
	at := now.Add(-time.Second)
	for range n {
		o.Pods = append(o.Pods, Replica{
			Phase: Serving, Since: t0.Add(-time.Hour),
			Readings: []Reading{{Value: batch, At: at, OK: true}},
			Arrivals: []Reading{{Value: came, At: at, OK: true}},
		})
	}
	return o
}

// learnedFlow is the state after ten minutes in which 4 servers had 8 requests
// each, their target, to which 2 a second came, and how many were wanted then.
func learnedFlow(t *testing.T, p Policy) (State, time.Time) {
	t.Helper()
	var s State
	now := t0
	for range 600 {
		var d Decision
		if d, s = Decide(p, fleet(now, 4, 8, 2), s, now); d.Replicas != 4 {
			t.Fatalf("%d replicas at the target: %s", d.Replicas, d.Sentence())
		}
		now = now.Add(time.Second)
	}
	return s, now
}

// Where servers no longer keep up their batches tell for how long that has been
// so; how many more are needed is told by what comes.
func TestArrivalsTellTheLoadOfOverload(t *testing.T) {
	p := sloPolicy(8, 0)
	p.Up.Tolerance = 0
	f := func(came float64, count bool) (wanted int32, sentence string) {
		s, now := learnedFlow(t, p)
		batch := 8.0
		for range 40 { // each serves 3 a second at most
			batch += came - min(came, 3)
			o := fleet(now, 4, batch, came)
			for i := range o.Pods {
				o.Pods[i].Arrivals[0].OK = count
			}
			var d Decision
			if d, s = Decide(p, o, s, now); d.Replicas > wanted {
				wanted, sentence = d.Replicas, d.Sentence()
			}
			now = now.Add(time.Second)
		}
		return wanted, sentence
	}
	blind, _ := f(10, false)
	counted, sentence := f(10, true)
	if blind >= 12 || counted < 18 || counted > 21 {
		t.Errorf("five times the load on 4 replicas: %d wanted by the batches, want less than 12; %d by what comes, want 18 to 21", blind, counted)
	}
	if !strings.Contains(sentence, "by the requests that come") {
		t.Error("the sentence does not say so:", sentence)
	}
	if half, _ := f(2.5, true); half < 4 || half > 6 {
		t.Errorf("a quarter more: %d wanted", half)
	}
}

// Few requests, and none, teach nothing; and what is not told is not zero.
func TestArrivalsTeachWhatTheyCan(t *testing.T) {
	p := sloPolicy(8, 0)
	_, s := Decide(p, fleet(t0, 4, 8, 0), State{}, t0)
	now := t0
	for i := range 100 {
		came := 0.0
		if i%10 == 0 {
			came = 0.4
		}
		now = now.Add(time.Second)
		_, s = Decide(p, fleet(now, 4, 8, came), s, now)
	}
	if d, _ := Decide(p, fleet(now.Add(time.Second), 4, 8, 100), s, now.Add(time.Second)); d.Replicas != 4 {
		t.Errorf("after 16 requests, 400 a second: %d replicas, want 4: %s", d.Replicas, d.Sentence())
	}

	s, now = learnedFlow(t, p)
	for range 60 {
		now = now.Add(time.Second)
		o := fleet(now, 4, 8, 0)
		for i := range o.Pods {
			o.Pods[i].Arrivals = nil
		}
		var d Decision
		if d, s = Decide(p, o, s, now); d.Replicas != 4 {
			t.Fatalf("without counters: %d replicas: %s", d.Replicas, d.Sentence())
		}
	}
}

// The rate is averaged for as long as a request stays: a second's burst to
// servers whose requests stay for a minute is no load yet.
func TestArrivalsAreAveragedOverAStay(t *testing.T) {
	f := func(batch, came float64) float64 {
		flow, now := Flow{}, t0
		for range 600 {
			before := flow
			flow = flow.next(came, now)
			if !before.At.IsZero() {
				flow.learn(1, batch, came, time.Second)
			}
			now = now.Add(time.Second)
		}
		flow = flow.next(2*came, now)
		return flow.wants()
	}
	if short, long := f(8, 4), f(240, 4); short < 1.15 || short > 1.25 || long < 1.01 || long > 1.03 {
		t.Errorf("twice as many for a second: %.3f replicas where requests stay 2 s, %.3f where they stay 60 s", short, long)
	}
}

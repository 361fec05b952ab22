// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"strings"
	"testing"
	"time"
)

// fleet is an observation of n servers, each with this many requests in flight
// and this arrival rate in requests/s.
func fleet(now time.Time, n int, batch, arrived float64) Observation {
	o := Observation{Replicas: int32(n)}
	at := now.Add(-time.Second)
	for range n {
		o.Pods = append(o.Pods, Replica{
			Phase: Serving, Since: t0.Add(-time.Hour),
			Readings: []Reading{{Value: batch, At: at, OK: true}},
			Arrivals: []Reading{{Value: arrived, At: at, OK: true}},
		})
	}
	return o
}

// learnedArrivals is the state after ten minutes in which 4 servers each had 8
// requests in flight, their target, and 2 requests/s arrived at each.
func learnedArrivals(t *testing.T, p Policy) (State, time.Time) {
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

// While servers do not keep up, the requests in flight show how long that has
// lasted. The arrival rate shows how many replicas are needed.
func TestArrivalsShowTheLoadOfAnOverload(t *testing.T) {
	p := sloPolicy(8, 0)
	p.Up.Tolerance = 0
	f := func(arrived float64, count bool) (wanted int32, sentence string) {
		s, now := learnedArrivals(t, p)
		batch := 8.0
		for range 40 { // each serves 3 a second at most
			batch += arrived - min(arrived, 3)
			o := fleet(now, 4, batch, arrived)
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
		t.Errorf("five times the load on 4 replicas: %d wanted by the requests in flight, want less than 12; %d by the arrival rate, want 18 to 21", blind, counted)
	}
	if !strings.Contains(sentence, "requests/s ÷ 2.0 per replica = ") {
		t.Error("the sentence does not say so:", sentence)
	}
	if half, _ := f(2.5, true); half < 4 || half > 6 {
		t.Errorf("a quarter more: %d wanted", half)
	}
}

// Nothing is learned from few requests or none, and a missing rate is not zero.
func TestArrivalsTeachWhatTheyCan(t *testing.T) {
	p := sloPolicy(8, 0)
	_, s := Decide(p, fleet(t0, 4, 8, 0), State{}, t0)
	now := t0
	for i := range 100 {
		arrived := 0.0
		if i%10 == 0 {
			arrived = 0.4
		}
		now = now.Add(time.Second)
		_, s = Decide(p, fleet(now, 4, 8, arrived), s, now)
	}
	if d, _ := Decide(p, fleet(now.Add(time.Second), 4, 8, 100), s, now.Add(time.Second)); d.Replicas != 4 {
		t.Errorf("after 16 requests, 400 a second: %d replicas, want 4: %s", d.Replicas, d.Sentence())
	}

	s, now = learnedArrivals(t, p)
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

// More requests that cost less look like an overload, but do not raise the
// requests in flight.
func TestCheaperRequestsAreNoOverload(t *testing.T) {
	p := sloPolicy(8, 0)
	s, now := learnedArrivals(t, p)
	last := int32(0)
	for range 600 {
		var d Decision
		d, s = Decide(p, fleet(now, 4, 8, 20), s, now)
		if last = d.Replicas; last > 8 {
			t.Fatalf("ten times as many requests and no more in flight: %s", d.Sentence())
		}
		now = now.Add(time.Second)
	}
	if last > 6 {
		t.Errorf("%d wanted after ten minutes of cheaper requests, want 6 at most", last)
	}
}

// What was learned outlasts a page that is late and a change of the target.
func TestArrivalModelIsKept(t *testing.T) {
	p := sloPolicy(8, 0)
	s, now := learnedArrivals(t, p)
	learned := s.Signals[0].Arrivals
	for _, hide := range []func(*Replica){
		func(r *Replica) { r.Arrivals = nil }, func(r *Replica) { r.Readings, r.Arrivals = nil, nil },
	} {
		o := fleet(now, 4, 20, 10)
		for i := range o.Pods {
			hide(&o.Pods[i])
		}
		if _, after := Decide(p, o, s, now); after.Signals[0].Arrivals != learned {
			t.Errorf("arrivals %+v, want %+v", after.Signals[0].Arrivals, learned)
		}
	}

	p.Signals[0].Target = 16 // 4 replicas with 8 each are now more than enough
	d, s := Decide(p, fleet(now, 4, 8, 2), s, now)
	if d.Replicas > 3 {
		t.Errorf("at twice the target: %s", d.Sentence())
	}
	p.Signals = nil
	if _, s = Decide(p, Observation{}, s, now); len(s.Signals) != 0 {
		t.Errorf("states of no signal: %+v", s.Signals)
	}
}

// Replicas that do not count their requests are not taken for idle.
func TestArrivalsOfSomeReplicas(t *testing.T) {
	p := sloPolicy(8, 0)
	var s State
	now := t0
	show := func(batch, arrived float64, counting int) Decision {
		o := fleet(now, 20, batch, arrived)
		for i := range o.Pods[counting:] {
			o.Pods[counting+i].Arrivals = nil
		}
		var d Decision
		d, s = Decide(p, o, s, now)
		now = now.Add(time.Second)
		return d
	}
	for range 300 {
		show(8, 2, 20)
	}
	var all, half Decision
	for range 20 {
		all = show(7, 2, 20)
	}
	for range 20 {
		half = show(7, 2, 10)
	}
	if half.Replicas < all.Replicas {
		t.Errorf("%d replicas with the rate of all servers, %d with that of half of them", all.Replicas, half.Replicas)
	}
}

// The rate is averaged over the time that a request stays: where that is a
// minute, a burst of one second hardly raises the demand.
func TestArrivalsAreAveragedOverAStay(t *testing.T) {
	f := func(batch, arrived float64) float64 {
		model, now, takes := ArrivalModel{}, t0, capacity{target: 8, double: 12}
		for range 600 {
			before := model
			model = model.next(arrived, now, &takes)
			if !before.At.IsZero() {
				model.learn(1, batch, arrived, time.Second)
			}
			now = now.Add(time.Second)
		}
		model = model.next(2*arrived, now, &takes)
		return model.demand(now)
	}
	if short, long := f(8, 4), f(240, 4); short < 1.15 || short > 1.25 || long < 1.01 || long > 1.03 {
		t.Errorf("twice as many for a second: %.3f replicas where requests stay 2 s, %.3f where they stay 60 s", short, long)
	}
}

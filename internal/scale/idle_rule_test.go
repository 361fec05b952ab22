// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Whatever happens, replicas are removed only after IdlePolicy.After of seconds that were seen
// unused, without use, an override or somebody who raises them between, with little of the
// time unknown. What is not known neither removes nor wakes.
func TestOnlyWhatIsSeenUnusedIsRemoved(t *testing.T) {
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 1))
		p := IdlePolicy{After: time.Duration(1+random.IntN(20)) * time.Minute, To: int32(random.IntN(3))}
		var s IdleState
		var idle, unknown time.Duration
		use := unused
		for range 3000 {
			if random.IntN(40) == 0 {
				use = []IdleUse{useUnknown, unused, unused, unused, inUse}[random.IntN(5)]
			}
			in := idleInput{Use: use, Elapsed: time.Second, Replicas: int32(random.IntN(4)), Raised: random.IntN(500) == 0, Asked: random.IntN(900) == 0}
			if random.IntN(300) == 0 {
				in.Elapsed = []time.Duration{-time.Hour, 0, 90 * time.Second, 100 * time.Hour}[random.IntN(4)]
			}
			next := p.next(s, in)
			ends := in.Use == inUse || in.Raised || in.Asked
			switch {
			case ends:
				idle, unknown = 0, 0
			case in.Elapsed < 0:
				idle, unknown = 0, 0
			case in.Use == useUnknown || in.Elapsed > time.Minute:
				if unknown += in.Elapsed; unknown > mostUnknown { // whatever After is
					idle = 0
				}
			default:
				if idle == 0 {
					unknown = 0
				}
				idle += in.Elapsed
			}
			switch {
			case ends && next != IdleState{}:
				t.Fatalf("seed %d: %+v after %+v", seed, next, in)
			case next.Down && !s.Down && (in.Use != unused || idle < p.After || in.Replicas <= p.To):
				t.Fatalf("seed %d: removed %d replicas after %v that were seen unused, with %+v and %+v", seed, in.Replicas-p.To, idle, in, p)
			case s.Down && !next.Down && !ends:
				t.Fatalf("seed %d: woken by %+v", seed, in)
			}
			s = next
		}
	}
}

func TestTheScaleDownIsAnnounced(t *testing.T) {
	p := IdlePolicy{After: 10 * time.Minute}
	var s IdleState
	announced := time.Duration(0)
	for n := range 11 * 60 {
		in := idleInput{Use: unused, Elapsed: time.Second, Replicas: 2}
		s = p.next(s, in)
		r := p.report(s, in, "")
		if r.Soon && announced == 0 {
			announced = r.Left
		}
		if r.Down && n < 599 {
			t.Fatalf("down after %d s", n)
		}
	}
	if !s.Down || announced != 2*time.Minute {
		t.Errorf("down: %v, announced %v before, want 2m", s.Down, announced)
	}
}

// A while that is not known starts the time again, and is reported.
func TestUnknownTime(t *testing.T) {
	f := func(after, silent time.Duration, kept bool) {
		t.Helper()
		p, s := IdlePolicy{After: after}, IdleState{}
		s = p.next(s, idleInput{Use: unused, Elapsed: time.Second, Replicas: 1})
		for range int(silent / time.Second) {
			s = p.next(s, idleInput{Use: useUnknown, Elapsed: time.Second, Replicas: 1})
		}
		r := p.report(s, idleInput{Use: useUnknown, Replicas: 1}, "web-1")
		if (s.For > 0) != kept || r.Blind == kept {
			t.Errorf("after %v of %v: %+v, blind: %v", silent, after, s, r.Blind)
		}
	}
	f(time.Hour, 59*time.Second, true)
	f(time.Hour, 61*time.Second, false)
	f(10*time.Hour, 5*time.Minute, true)
	f(10*time.Hour, 7*time.Minute, false)
	f(720*time.Hour, 9*time.Minute, true)
	f(720*time.Hour, 11*time.Minute, false)
}

// SPDX-License-Identifier: Apache-2.0

package promise

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// The budget is paced whatever the load does: as long as it can be kept at the strictest aim,
// no more is missed than the share to be used, the part of it that is paid back later, and
// one step of misses in each time over which it is judged, however plans miss their aim. Where they miss in proportion to it, most of the share is used.
func TestTheBudgetIsPaced(t *testing.T) {
	const days, perSecond, step = 60, 10, 900.0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 7))
		x := Terms{Objective: 1 - math.Pow(10, -1-2*rng.Float64()), Over: float64(1+rng.IntN(28)) * 24 * 3600, Use: 0.1 + 0.9*rng.Float64()}
		most := max(planned*x.Use, earlyUse) * x.allowed()
		hostile, factor := seed%2 == 0, math.Exp(1.4*rng.Float64()-0.7)
		var p Pace
		missed, ended, once := 0.0, 0.0, 0.0
		for range int(days * 24 * 3600 / step) {
			aim, left := p.aim(&x, perSecond)
			if aim < leastAim*min(planned*x.Use, earlyUse)*x.allowed()-1e-12 || aim > mostAim*most+1e-12 {
				t.Fatalf("seed %d: aim %v of %v", seed, aim, most)
			}
			n, share := perSecond*step*(0.5+rng.Float64()), factor*aim
			if hostile {
				share = []float64{0, aim, 3 * aim, 10 * aim, 0.5}[rng.IntN(5)]
			}
			if left <= leastAim { // it can be kept
				share = min(share, aim/leastAim)
			}
			share = min(share, 1)
			once = max(once, share*n)
			p = p.next(n, share*n, step, x.Over)
			if missed, ended = missed+share*n, ended+n; missed > most*(1+1.1*paidBack)*ended+most*paidBack*perSecond*x.Over+once*(2+ended/perSecond/x.Over) {
				t.Fatalf("seed %d: %v of %v requests missed, to be used %v of them", seed, missed, ended, most)
			}
		}
		if used := missed / ended / (planned * x.Use * x.allowed()); !hostile && x.Over >= 7*24*3600 && planned*x.Use > earlyUse && (used < 0.75 || used > 1.25) {
			t.Errorf("seed %d: plans that miss %v of their aim use %v of the share", seed, factor, used)
		}
	}
}

// burst is a record of calm load, with one jump of ten minutes to 3.4 times as much at some
// hours before its end.
func burst(hoursAgo float64) State {
	s := drive(State{}, Load{Prompt: 4000, Output: 2000}, 5, 3600)
	s.Ended, s.Aimed, s.Pace = 1e6, 4000, Pace{Ended: 1e6, Missed: 4000}
	s.Missed = Misses{Planned: 4000}
	s.Loads = slices.Repeat([]Load{{Prompt: 4000, Output: 2000}}, keptSteps)
	if hoursAgo > 0 {
		at := keptSteps - int(hoursAgo*3600/StepSeconds)
		for i := range 600 / StepSeconds {
			s.Loads[at+i] = Load{Prompt: 13600, Output: 6800}
		}
	}
	return s
}

// One jump is paid from the budget: it changes neither the plan nor what a miss is worth by
// much. Where little is left of it, or it is judged over an hour, jumps count as before.
func TestOneJumpIsPaidFromTheBudget(t *testing.T) {
	bounds := Bounds{1, 100, 180}
	calm := burst(0).Learn(terms, bounds).Plan
	once := burst(2)
	if p := once.Learn(terms, bounds).Plan; p.Replicas > 1.2*calm.Replicas {
		t.Errorf("after one jump %+v, without it %+v", p, calm)
	}
	spent := burst(2)
	spent.Pace.Missed *= 10
	if p := spent.Learn(terms, bounds).Plan; p.Replicas < 1.3*calm.Replicas {
		t.Errorf("with nothing left of the budget %+v, without a jump %+v", p, calm)
	}
	short := terms
	short.Over = 3600
	if p, calm := once.Learn(short, bounds).Plan, burst(0).Learn(short, bounds).Plan; p.Replicas < 1.3*calm.Replicas {
		t.Errorf("judged over an hour %+v, without a jump %+v", p, calm)
	}
	twice := burst(2)
	copy(twice.Loads[keptSteps-960:], twice.Loads[keptSteps-480:keptSteps-400])
	if p := twice.Learn(terms, bounds).Plan; p.Replicas < 1.3*calm.Replicas {
		t.Errorf("after two jumps %+v, without one %+v", p, calm)
	}
	jumped := burst(2)
	jumped.Missed.Starting = 1e4
	if got := jumped.over(jumped.Aim(terms), 1); got > 1+mostJumps+1e-9 {
		t.Errorf("one jump counts as %v times what was aimed at", got)
	}
}

// A promise of the first token has a knee of its own: that of the prompts.
func TestALimitOfTheFirstTokenHasAKnee(t *testing.T) {
	s := drive(State{}, Load{Prompt: 4000, Output: 2000}, 5, 3600)
	cost, _ := s.Work.Cost()
	before := mostBusy + 1e-9
	for _, first := range []float64{2, 0.5, 0.2, 0.1, 0.05, 0.01} {
		knee := s.knee(&cost, Limits{FirstToken: first})
		if knee > before || knee < leastKnee {
			t.Errorf("%g s: %v, and %v for a longer limit", first, knee, before)
		}
		before = knee
	}
	if before > leastKnee {
		t.Errorf("a limit that no prompt keeps leaves %v", before)
	}
	if knee := (&State{}).knee(&cost, Limits{FirstToken: 1}); knee != mostBusy {
		t.Errorf("while prompts are not known: %v", knee)
	}
}

// The load of the last minute may fill replicas as far as few requests missed a limit there.
func TestTheLastMinuteIsLearned(t *testing.T) {
	s := burst(0)
	for i := range s.Curve.Ended {
		s.Curve.Ended[i] = 1e6
	}
	p := s.Learn(terms, Bounds{1, 50, 120}).Plan
	if p.AtOnce < 0.8 || p.AtOnce > mostBusy {
		t.Errorf("nothing was missed at any load: %v", p.AtOnce)
	}
	for i := range s.Curve.Missed {
		s.Curve.Missed[i] = 1e5
	}
	if p := s.Learn(terms, Bounds{1, 50, 120}).Plan; p.AtOnce != 0 {
		t.Errorf("a tenth is missed at any load: %v", p.AtOnce)
	}
}

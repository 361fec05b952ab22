// SPDX-License-Identifier: Apache-2.0

package promise

import (
	"math"
	"slices"
	"testing"
	"time"
)

var start = time.Unix(1_700_000_000, 0)

// driven is drive, with times.
func driven(s State, from time.Time, l Load, seconds int) State {
	for i := range seconds {
		s = s.Next(Reading{At: from.Add(time.Duration(i+1) * time.Second), Serving: 5, Read: 5, Prompt: float64(l.Prompt), Output: float64(l.Output), TokenSeconds: tokenSeconds(truth, Load{Prompt: l.Prompt / 5, Output: l.Output / 5}), Ended: 10}, 1, terms)
	}
	return s
}

// A time without readings is missing: it is neither zero, nor does it shift what was before.
func TestAGapIsMissing(t *testing.T) {
	s := driven(State{}, start, Load{Prompt: 4000, Output: 2000}, 60)
	before := len(s.Loads)
	s = driven(s, start.Add(time.Hour), Load{Prompt: 4000, Output: 2000}, 60)
	gap := 0
	for _, l := range s.Loads {
		if l.isMissing() {
			gap++
		}
	}
	if want := (3600 - 60) / StepSeconds; math.Abs(float64(gap-want)) > 1 || known(s.Loads) < 2*before-1 {
		t.Errorf("%d of %d steps are missing, want %d", gap, len(s.Loads), want)
	}
	cost, _ := s.Work.Cost()
	if got, want := s.highest(&cost, 0, 4, 3600/StepSeconds), cost.Busy(Load{Prompt: 4000, Output: 2000}); math.Abs(got/want-1) > 0.01 {
		t.Errorf("the highest mean of a minute is %v busy replicas, want %v", got, want)
	}
	s = driven(s, start.Add(30*24*time.Hour), Load{Prompt: 4000, Output: 2000}, 60)
	if len(s.Loads) != keptSteps || known(s.Loads) > 10 {
		t.Errorf("after a month: %d of %d steps are known", known(s.Loads), len(s.Loads))
	}
}

// A replay with missing steps counts what is known.
func TestMissingStepsWeighNothing(t *testing.T) {
	var c Curve
	r := Replay{Seconds: StepSeconds, Cost: truth, Shares: c.Shares(0.4), Startup: 60, Min: 1, Max: 100, Price: 1.5, Loads: make([]Load, 4800)}
	r.Cost.Knee = 0.4
	for i := range r.Loads {
		r.Loads[i] = Load{Prompt: 8000, Output: 4000}
	}
	want := r.Choose(0.01)
	for i := range r.Loads[:4000] {
		if i%400 > 40 {
			r.Loads[i] = Missing
		}
	}
	if got := r.Choose(0.01); got.Replicas != want.Replicas || math.Abs(got.Share-want.Share) > 1e-4 {
		t.Errorf("with gaps %+v, want %+v", got, want)
	}
}

func TestRecall(t *testing.T) {
	s := driven(State{}, start, Load{Prompt: 4000, Output: 2000}, 60)
	own := slices.Clone(s.Loads)
	recalled := s.Recall(start.Add(time.Minute), func(from, until time.Time) []Load {
		if d := until.Sub(start); d < -StepSeconds*time.Second || d > StepSeconds*time.Second {
			t.Errorf("until %v after the start", d)
		}
		if n := int(until.Sub(from).Seconds()) / StepSeconds; n+len(own) != keptSteps {
			t.Errorf("%d steps are asked for", n)
		}
		return []Load{Missing, {Prompt: 1, Output: 2}, Missing, {Prompt: 3, Output: 4}}
	})
	if want := append([]Load{{Prompt: 1, Output: 2}, Missing, {Prompt: 3, Output: 4}}, own...); !slices.Equal(recalled.Loads, want) {
		t.Errorf("got %v, want %v", recalled.Loads, want)
	}
	if !slices.Equal(s.Loads, own) {
		t.Error("the state of before was changed")
	}
	long := s.Recall(start, func(time.Time, time.Time) []Load { return make([]Load, 14*24*240) })
	if len(long.Loads) != keptSteps || long.Loads[keptSteps-1] != own[len(own)-1] {
		t.Errorf("%d steps are kept", len(long.Loads))
	}
	if again := long.Recall(start, func(from, until time.Time) []Load { return make([]Load, int(until.Sub(from).Seconds())/StepSeconds) }); len(again.Loads) != keptSteps {
		t.Errorf("%d steps after a second time", len(again.Loads))
	}
	empty := State{}.Recall(start, func(time.Time, time.Time) []Load { return []Load{Missing, Missing} })
	if len(empty.Loads) != 0 {
		t.Errorf("nothing was recorded, and there are %d steps", len(empty.Loads))
	}
}

// A minute's steps have its mean and its highest load, whatever a history says.
func TestMinute(t *testing.T) {
	nan := float32(math.NaN())
	f := func(mean, highest, wantMean, wantHighest Load) {
		t.Helper()
		steps := Minute(mean, highest)
		var sum, high Load
		for _, l := range steps {
			if l.isMissing() != (wantMean == Missing) {
				t.Fatalf("steps %v", steps)
			}
			sum.Prompt, sum.Output = sum.Prompt+l.Prompt/4, sum.Output+l.Output/4
			high.Prompt, high.Output = max(high.Prompt, l.Prompt), max(high.Output, l.Output)
		}
		if wantMean != Missing && (sum != wantMean || high != wantHighest) {
			t.Errorf("%v, %v: a mean of %v and at most %v, want %v and %v", mean, highest, sum, high, wantMean, wantHighest)
		}
	}
	f(Load{Prompt: 100, Output: 20}, Load{Prompt: 160, Output: 20}, Load{Prompt: 100, Output: 20}, Load{Prompt: 160, Output: 20})
	f(Load{Prompt: 100, Output: 20}, Load{Prompt: 1e9, Output: 80}, Load{Prompt: 100, Output: 20}, Load{Prompt: 400, Output: 80}) // at most four times the mean
	f(Load{Prompt: 100, Output: 20}, Load{Prompt: nan, Output: 5}, Load{Prompt: 100, Output: 20}, Load{Prompt: 100, Output: 20})
	f(Load{}, Load{Prompt: 8, Output: 8}, Load{}, Load{})
	f(Load{Prompt: nan, Output: 20}, Load{Prompt: 1, Output: 1}, Missing, Missing)
	f(Load{Prompt: -1, Output: 20}, Load{Prompt: 1, Output: 1}, Missing, Missing)
	f(Load{Prompt: 2e12, Output: 20}, Load{Prompt: 1, Output: 1}, Missing, Missing)
}

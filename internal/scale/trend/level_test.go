// SPDX-License-Identifier: Apache-2.0

package trend

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const span = 5 * time.Second

// follow feeds a level a demand a second and returns what came of each.
func follow(l Level, n int, demand func(i int) float64) (Level, []float64) {
	out := make([]float64, n)
	for i := range n {
		now := t0.Add(time.Duration(i) * time.Second)
		if !l.At.IsZero() {
			now = l.At.Add(time.Second)
		}
		l = l.Next(demand(i), now, span)
		out[i] = l.Value
	}
	return l, out
}

func TestStepWithoutNoiseCountsAtOnce(t *testing.T) {
	l, _ := follow(Level{}, 600, func(int) float64 { return 4 })
	if _, got := follow(l, 1, func(int) float64 { return 9 }); got[0] < 8.9 {
		t.Errorf("a step from 4 to 9 shows as %.2f in its first second", got[0])
	}
	if _, got := follow(l, 1, func(int) float64 { return 1 }); got[0] > 1.1 {
		t.Errorf("a step from 4 to 1 shows as %.2f in its first second", got[0])
	}
	// Steps every ten seconds teach no noise, either.
	l, _ = follow(l, 1200, func(i int) float64 { return 4 + 5*float64(i/10%2) })
	if _, got := follow(l, 1, func(int) float64 { return 20 }); got[0] < 12 {
		t.Errorf("after regular steps, one to 20 shows as %.2f, want most of it", got[0])
	}
}

func TestNoiseIsAveraged(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	noisy := func(mean float64) func(int) float64 {
		return func(int) float64 { return max(0, mean+rng.NormFloat64()) }
	}
	l, _ := follow(Level{}, 600, noisy(5))
	l, got := follow(l, 600, noisy(5))
	most := 0.0
	for _, x := range got {
		most = max(most, math.Abs(x-5))
	}
	if most > 1.5 {
		t.Errorf("a demand of 5 ± 1 moves the level by %.2f", most)
	}
	if _, got := follow(l, 10, noisy(15)); got[9] < 11 {
		t.Errorf("ten seconds after a step of ten deviations the level is %.2f, want most of 15", got[9])
	}
}

func TestLevelStartsAgain(t *testing.T) {
	l, _ := follow(Level{}, 600, func(i int) float64 { return 5 + 4*float64(i%2) })
	for name, now := range map[string]time.Time{
		"after a gap":                   l.At.Add(time.Minute),
		"where the clock has gone back": l.At.Add(-time.Second),
	} {
		if got := l.Next(20, now, span); got.Value != 20 || got.Variance != 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := (Level{}).Next(1e300, t0, span); got.Value > Most {
		t.Errorf("a hostile demand shows as %g", got.Value)
	}
}

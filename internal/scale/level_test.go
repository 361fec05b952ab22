// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/facts"
)

// A load that moves faster than the average over it is no reason to remove replicas that
// it needs now. A window that is shorter than the average does not hold them.
func TestAShortWindowRemovesNothingNeeded(t *testing.T) {
	p := utilPolicy()
	p.Max, p.Down.Window = 60, 5*time.Second
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var s State
		cur, load, since := int32(5), 2.0, 0
		for i := range 600 {
			if rng.IntN(8) == 0 {
				load, since = 1+float64(rng.IntN(60))/10, i
			}
			now := t0.Add(time.Duration(i) * time.Second)
			values := make([]float64, cur)
			for k := range values {
				values[k] = min(100, 100*load/float64(cur))
			}
			var d Decision
			d, s = Decide(p, seen(now, values...), s, now)
			if need := facts.Replicas(load / 0.66); i > since && d.Replicas < cur && d.Replicas < need {
				t.Fatalf("seed %d, after %d s: %d to %d replicas, a load of %.1f needs %d: %s", seed, i, cur, d.Replicas, load, need, d.Sentence())
			}
			cur = d.Replicas
		}
	}
}

// A window keeps the highest demand of a noisy share. It asks for fewer replicas than with
// the average of other signals, and follows a step within half a minute.
func TestTheNoiseOfASharesDemandCostsFewReplicas(t *testing.T) {
	highest := func(ceiling float64) (most int32, seconds int) {
		rng := rand.New(rand.NewPCG(3, 4))
		p := utilPolicy()
		p.Signals[0].Ceiling, p.Down.Window = ceiling, Auto
		p.Up.Tolerance, p.Max = 0, 100
		var s State
		for i := range 1800 {
			now := t0.Add(time.Duration(i) * time.Second)
			load := 54.0
			if i >= 1200 {
				load = 85
			}
			values := make([]float64, 10)
			for k := range values {
				values[k] = min(max(0, load+25*rng.NormFloat64()), 100)
			}
			var d Decision
			d, s = Decide(p, seen(now, values...), s, now)
			switch {
			case i < 60:
			case i < 1200:
				most = max(most, d.Replicas)
			case d.Replicas > 12:
				return most, i - 1200
			}
		}
		return most, -1
	}
	share, late := highest(100)
	other, _ := highest(0)
	if share >= other || share > 10 {
		t.Errorf("with the same noise, a share asks for up to %d replicas and another signal for %d, want fewer", share, other)
	}
	if late < 0 || late > 30 {
		t.Errorf("after a step by half, 13 replicas were wanted after %d s, want 30 at most", late)
	}
}

// Readings that come and go are no change of the load: the mean of the last
// seconds does not go by what fewer replicas carried.
func TestReadingsThatComeAndGoTakeNothingAway(t *testing.T) {
	p := utilPolicy()
	p.Down.Window = 5 * time.Second
	rng := rand.New(rand.NewPCG(1, 2))
	values := make([]float64, 9)
	var s State
	for i := range 1200 {
		now := t0.Add(time.Duration(i) * time.Second)
		if i%3 == 0 { // who has no value is drawn anew
			for k := range values {
				if values[k] = 55.6; rng.IntN(10) == 0 {
					values[k] = math.NaN()
				}
			}
		}
		var d Decision
		if d, s = Decide(p, seen(now, values...), s, now); d.Replicas != 9 {
			t.Fatalf("after %d s: %d replicas, want 9 throughout: %s", i, d.Replicas, d.Sentence())
		}
	}
}

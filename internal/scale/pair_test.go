// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// half is one workload of a pair: demand is in replicas.
type half struct {
	p        Policy
	s        State
	replicas int32
	born     []time.Time
	own      Reading
	demand   float64
	known    bool
}

func (h *half) step(partner Reading, startup time.Duration, now time.Time) Decision {
	for int32(len(h.born)) < h.replicas {
		h.born = append(h.born, now)
	}
	h.born = h.born[:h.replicas]
	o := Observation{Replicas: h.replicas, Partner: partner}
	serving := 0.0
	for _, at := range h.born {
		if now.Sub(at) >= startup {
			serving++
		}
	}
	for i, at := range h.born {
		r := Replica{Name: fmt.Sprint(i), Phase: Starting, Since: at}
		if now.Sub(at) >= startup {
			r.Phase, r.Since = Serving, at.Add(startup)
			r.Readings = []Reading{{Value: 10 * h.demand / serving, At: now, OK: h.known}}
		}
		o.Pods = append(o.Pods, r)
	}
	d, s := Decide(h.p, o, h.s, now)
	h.s, h.replicas = s, d.Replicas
	h.own = Reading{Value: float64(d.Own), At: now, OK: true}
	return d
}

// Two workloads with demands of their own are kept in the ratio, as far as whole numbers and
// bounds allow. They raise each other no further than that, and are still once the demand is.
func TestPairsNeitherOscillateNorClimb(t *testing.T) {
	for seed := range uint64(24) {
		random := rand.New(rand.NewPCG(seed, 7))
		low := []float64{0, 0.1, 0.25, 0.3, 1.0 / 3, 0.5, 1, 1.2, 2, 3}[random.IntN(10)]
		high := max(low, 0.1) * []float64{1, 1, 1.1, 1.5, 2, 10}[random.IntN(6)]
		startup := time.Duration(1+random.IntN(90)) * time.Second
		make := func(with string, perPartner float64, lower bool) *half {
			h := &half{replicas: 1 + random.Int32N(9), known: true, p: Policy{
				Min: 1, Max: 200, Signals: []Signal{{Name: "load", Target: 10}}, Startup: startup,
				Up: Rules{Tolerance: 0.1}, Down: Rules{Tolerance: 0.1, Window: time.Duration(random.IntN(90)) * time.Second},
				Pair: Pair{With: with, PerPartner: perPartner, Lower: lower},
			}}
			switch random.IntN(6) {
			case 0:
				h.p.Down.Select = SelectDisabled // whatever raised it stays
			case 1:
				h.p.Down.Window = Auto
			case 2:
				h.p.Up.Policies = []RatePolicy{{Value: 2, Period: 30 * time.Second}}
			}
			return h
		}
		a, b := make("b", low, false), make("a", 1/high, true)
		now, most := t0, [2]float64{}
		var lastA, lastB int32
		still := 0
		for second := range 2700 {
			if now = now.Add(time.Second); second < 1200 && second%60 == 0 {
				a.demand, b.demand = 20*random.Float64(), 20*random.Float64()
			}
			// What one of them needs beside the most that the other has ever needed.
			most[0], most[1] = max(most[0], a.demand, float64(a.replicas)*oneIf(second == 0)), max(most[1], b.demand, float64(b.replicas)*oneIf(second == 0))
			fromA := a.own
			if second%7 != 0 { // the loops do not run in step
				a.step(b.own, startup, now)
			}
			if second%11 != 0 {
				b.step(fromA, startup, now)
			}
			// 1.5 is the most that a forecast and the tolerance add to a demand.
			capA := math.Ceil(1.5*most[0]) + 2
			capB := math.Ceil(1.5*most[1]) + 2
			capA, capB = max(capA, math.Ceil(low*max(capB, capA/high+1))), max(capB, capA/high+1)
			if float64(a.replicas) > capA+1 || float64(b.replicas) > capB+1 {
				t.Fatalf("seed %d, ratio %.3g to %.3g: %d and %d replicas after %d s, for demands of at most %.3g", seed, low, high, a.replicas, b.replicas, second, most)
			}
			if a.replicas != lastA || b.replicas != lastB {
				still = second
			}
			lastA, lastB = a.replicas, b.replicas
		}
		if still > 2100 {
			t.Errorf("seed %d, ratio %.3g to %.3g: still changing after %d s, to %d and %d", seed, low, high, still, a.replicas, b.replicas)
		}
		n, m := float64(a.replicas), float64(b.replicas)
		if n < low*m-1e-9 || n > max(math.Ceil(low*m-1e-9), high*(m+1)) {
			t.Errorf("seed %d: %v and %v replicas are not in the ratio %.3g to %.3g", seed, n, m, low, high)
		}
		if n < math.Floor(a.demand*0.9) || m < math.Floor(b.demand*0.9) {
			t.Errorf("seed %d: %v and %v replicas for demands of %.3g and %.3g", seed, n, m, a.demand, b.demand)
		}
	}
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func TestPair(t *testing.T) {
	f := func(want int32, what string, pair Pair, change func(*Policy, *Observation)) {
		t.Helper()
		p := Policy{Min: 1, Max: 10, Signals: []Signal{{Name: "load", Target: 10}}, Up: Rules{Tolerance: 0.1}, Down: Rules{Tolerance: 0.1}, Pair: pair}
		o := Observation{Replicas: 3, Partner: Reading{Value: 8, At: t0, OK: true}}
		for i := range 3 {
			o.Pods = append(o.Pods, Replica{Name: fmt.Sprint(i), Since: t0.Add(-time.Hour), Readings: []Reading{{Value: 20.0 / 3, At: t0, OK: true}}})
		}
		if change != nil {
			change(&p, &o)
		}
		if d, _ := Decide(p, o, State{}, t0); d.Replicas != want || d.Own != 2 {
			t.Errorf("%s: %d replicas (%d by its own signals), want %d: %s", what, d.Replicas, d.Own, want, d.Sentence())
		}
	}
	with := func(x float64) Pair { return Pair{With: "decode", PerPartner: x} }
	f(2, "no pair", Pair{}, nil)
	f(4, "half of the partner's", with(0.5), nil)
	f(3, "rounded up", with(0.3), nil)
	f(2, "rounded down", Pair{With: "prefill", PerPartner: 0.3, Lower: true}, nil)
	f(2, "more than the ratio asks for", with(0.1), nil)
	f(10, "maxReplicas", with(2), nil)
	f(6, "the budget", with(2), func(p *Policy, _ *Observation) { p.MaxGPUs, p.GPUsPerReplica = 12, 2 })
	f(2, "a partner at 0", with(2), func(_ *Policy, o *Observation) { o.Partner.Value = 0 })
	f(3, "what the partner wants is not known", with(0.5), func(_ *Policy, o *Observation) { o.Partner = Reading{} })
	f(3, "what it wanted long ago", with(0.5), func(_ *Policy, o *Observation) { o.Partner.At = t0.Add(-2 * time.Minute) })
	f(10, "a partner that lies", with(0.5), func(_ *Policy, o *Observation) { o.Partner.Value = 1e30 })
	f(3, "a partner without a number", with(0.5), func(_ *Policy, o *Observation) { o.Partner.Value = math.NaN() })
	f(3, "an override", with(0.5), func(p *Policy, _ *Observation) {
		p.Min, p.Max, p.InForce.Max = 3, 3, Origin{Rule: RuleOverride, Text: "override"}
	})
}

// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// ramp replays hours of a demand in replicas, by second, with start-ups of five
// minutes and as many replicas as were asked for, and counts the forecasts and
// the seconds in which fewer replicas served than were needed.
func ramp(t *testing.T, demand func(s float64) float64) (forecasts, short int) {
	t.Helper()
	p := Policy{
		Min: 1, Max: 1000, Startup: 5 * time.Minute,
		Signals: []Signal{{Name: "queue", Target: 1}}, Down: Rules{Window: Auto},
	}
	var s State
	cur := int32(math.Ceil(demand(0)))
	begun := map[int32]int{} // second at which a replica was asked for
	for i := range 4 * 3600 {
		now := t0.Add(time.Duration(i) * time.Second)
		serving := int32(0)
		for k := range cur {
			if at, ok := begun[k]; !ok || i-at >= 300 {
				serving++
			}
		}
		need := demand(float64(i))
		if float64(serving) < need-0.1 {
			short++
		}
		o := Observation{Replicas: cur}
		for k := range cur {
			r := Replica{Phase: Serving, Since: t0.Add(-time.Hour)}
			if at, ok := begun[k]; ok && i-at < 300 {
				r.Phase, r.Since = Starting, t0.Add(time.Duration(at)*time.Second)
			} else {
				r.Readings = []Reading{{Value: need / float64(serving), At: now, OK: true}}
			}
			o.Pods = append(o.Pods, r)
		}
		var d Decision
		d, s = Decide(p, o, s, now)
		if has(d, RuleForecast) {
			forecasts++
		}
		for k := cur; k < d.Replicas; k++ {
			begun[k] = i
		}
		cur = d.Replicas
	}
	return forecasts, short
}

func TestForecastOfASteadyRise(t *testing.T) {
	forecasts, short := ramp(t, func(s float64) float64 { return 10 + 40*s/(4*3600) })
	// Without it every one of the forty replicas would come five minutes late.
	if forecasts == 0 || short > 6000 {
		t.Errorf("%d forecasts, too few replicas for %d s of a rise over 4 h", forecasts, short)
	}
}

func TestNoForecastWhereItDoesNotPay(t *testing.T) {
	if n, _ := ramp(t, func(float64) float64 { return 12.4 }); n > 0 {
		t.Errorf("%d forecasts of a steady demand", n)
	}
	rng := rand.New(rand.NewPCG(7, 8))
	level := 12.0
	var last int
	n, _ := ramp(t, func(s float64) float64 { // another level each five minutes
		if k := int(s) / 300; k != last {
			last, level = k, 8+8*rng.Float64()
		}
		return level
	})
	if n > 4*3600/100 {
		t.Errorf("forecasts in %d s of 4 h of chance", n)
	}
}

// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/facts"
	"github.com/gpupilot/gpupilot/internal/scale/latency"
)

// server is one with continuous batching: at the share rho of the load at which
// its batch would grow without end, tokens take base/(1-rho) seconds and the
// batch is double·rho/(1-rho).
type server struct{ base, double float64 }

func (s server) at(rho float64) (batch, latency float64) {
	return s.double * rho / (1 - rho), s.base / (1 - rho)
}

func sloPolicy(target, limit float64) Policy {
	return Policy{Min: 1, Max: 100, Signals: []Signal{{Name: "requests", Target: target, Law: Batching, Limit: limit}}}
}

// loaded is an observation of n replicas at the share rho, read a second ago.
func (s server) loaded(now time.Time, n int, rho float64, rng *rand.Rand) Observation {
	o := Observation{Replicas: int32(n)}
	for range n {
		share := min(0.95, max(0.01, rho*(1+0.3*rng.NormFloat64())))
		batch, latency := s.at(share)
		at := now.Add(-time.Second)
		o.Pods = append(o.Pods, Replica{
			Phase: Serving, Since: t0.Add(-time.Hour),
			Readings: []Reading{{Value: batch, At: at, OK: true}},
			Paces:    []Pace{{Batch: batch, TokenSeconds: latency, At: at, OK: true}},
		})
	}
	return o
}

// TestLearnsTheBatchAtTheLimit has servers of several kinds under load and asks
// for the target that is learned.
func TestLearnsTheBatchAtTheLimit(t *testing.T) {
	f := func(s server, limit, target float64) {
		t.Helper()
		p, rng := sloPolicy(target, limit), rand.New(rand.NewPCG(3, 4))
		var d Decision
		var state State
		for i := range 600 {
			now := t0.Add(time.Duration(i) * time.Second)
			rho := (1 - s.base/limit) * (0.5 + 0.4*math.Sin(float64(i)/60))
			d, state = Decide(p, s.loaded(now, 4, rho, rng), state, now)
		}
		// The batch varies as that of a server in which all share its speed.
		got := d.Inputs[0].Target
		high := got + latency.Spread*math.Sqrt(got*(1+got/s.double))
		if most := s.double * (limit/s.base - 1); math.Abs(high/most-1) > 0.1 {
			t.Errorf("%+v, limit %g: target %.1f, at times %.1f, want %.1f", s, limit, got, high, most)
		}
		if !d.Steps[0].Facts.(*facts.Demand).TargetLearned {
			t.Errorf("%+v: the step does not say that the target was learned", s)
		}
	}
	f(server{0.008, 15}, 0.015, 8)
	f(server{0.008, 33}, 0.015, 8)
	f(server{0.018, 60}, 0.080, 50)
}

// With a limit of the time to the first token the target is where that is kept,
// and the lower of two where both limits are given. The time to the first token
// of an overloaded server is not learned from.
func TestLearnsTheBatchAtTheFirstTokensLimit(t *testing.T) {
	s := server{0.008, 33}
	learn := func(limit, firstLimit float64, overloaded bool) float64 {
		p, rng := sloPolicy(8, limit), rand.New(rand.NewPCG(9, 10))
		p.Signals[0].FirstLimit = firstLimit
		var d Decision
		var state State
		for i := range 900 {
			now := t0.Add(time.Duration(i) * time.Second)
			o := s.loaded(now, 4, 0.3+0.25*math.Sin(float64(i)/60), rng)
			for k := range o.Pods {
				pace := &o.Pods[k].Paces[0]
				pace.FirstTokenSeconds, pace.FirstTokensPerSecond = 0.2*(1+pace.Batch/20), 5
				// The server's histogram shows it for longer than its gauges.
				if overloaded && i%90 < 10 {
					o.Pods[k].Readings[0].Value = 400
				}
				if overloaded && i%90 < 25 {
					pace.FirstTokenSeconds = 30
				}
			}
			d, state = Decide(p, o, state, now)
		}
		return d.Inputs[0].Target
	}
	between, first, both := learn(0.015, 0, false), learn(0, 0.4, false), learn(0.015, 0.4, false)
	// 0.4 s are reached at a batch of 20, which varies.
	high := first + latency.Spread*math.Sqrt(first*(1+first/20))
	if math.Abs(high/20-1) > 0.1 {
		t.Errorf("target %.1f, at times %.1f, want 20", first, high)
	}
	if math.Abs(both-min(between, first)) > 0.5 {
		t.Errorf("target %.1f with both limits, %.1f and %.1f with each", both, between, first)
	}
	if got := learn(0, 0.4, true); math.Abs(got/first-1) > 0.1 {
		t.Errorf("target %.1f with overloads, %.1f without", got, first)
	}
	if got := learn(0, 0.1, false); got != 8 {
		t.Errorf("a limit that an idle server misses: target %.1f, want the given 8", got)
	}
	if got := learn(0, 100, false); got < 12 {
		t.Errorf("a limit that is never near: target %.1f, want more than the 8 that were given", got)
	}
}

// A server whose tokens take now half and now one and a half times as long is
// loaded less than one of the same mean.
func TestScatterLowersTheTarget(t *testing.T) {
	f := func(scatter float64) float64 {
		p, rng, s := sloPolicy(8, 0.03), rand.New(rand.NewPCG(7, 8)), server{0.008, 33}
		var d Decision
		var state State
		for i := range 900 {
			now := t0.Add(time.Duration(i) * time.Second)
			o := s.loaded(now, 4, 0.4+0.3*math.Sin(float64(i)/60), rng)
			for k := range o.Pods {
				o.Pods[k].Paces[0].TokenSeconds *= 1 + scatter*(2*rng.Float64()-1)
			}
			d, state = Decide(p, o, state, now)
		}
		return d.Inputs[0].Target
	}
	if calm, wild := f(0), f(0.5); wild > 0.85*calm || wild < 0.3*calm {
		t.Errorf("target %.1f with scatter, %.1f without", wild, calm)
	}
}

// Just below what idle replicas take and just above it the given target counts,
// and nothing jumps between.
func TestLimitsNearAnIdleServers(t *testing.T) {
	s := server{0.04, 33}
	learn := func(limit float64) (low, high float64) {
		p, rng := sloPolicy(8, limit), rand.New(rand.NewPCG(11, 12))
		var d Decision
		var state State
		low = math.Inf(1)
		for i := range 1800 {
			now := t0.Add(time.Duration(i) * time.Second)
			o := s.loaded(now, 4, 0.1, rng)
			for k := range o.Pods {
				o.Pods[k].Paces[0].TokenSeconds *= 1 + 0.3*(2*rng.Float64()-1)
			}
			d, state = Decide(p, o, state, now)
			if got := d.Inputs[0].Target; i > 600 {
				low, high = min(low, got), max(high, got)
			}
		}
		return low, high
	}
	for _, limit := range []float64{0.038, 0.041, 0.046, 0.048, 0.050} {
		if low, high := learn(limit); low < 1 || high > 8 || high-low > 5 {
			t.Errorf("limit %g: targets from %.1f to %.1f", limit, low, high)
		}
	}
	if low, _ := learn(0.041); low != 8 {
		t.Errorf("a limit that idle replicas exceed at times: target %.1f, want the given 8", low)
	}
}

// Half of the requests wait long for their first token whatever the batch, as
// where the other half's prompts are cached. A limit between the two is no
// reason to believe that any batch will do.
func TestFirstTokensOfTwoKinds(t *testing.T) {
	p, s := sloPolicy(8, 0), server{0.008, 33}
	p.Signals[0].FirstLimit = 1
	rng := rand.New(rand.NewPCG(13, 14))
	var d Decision
	var state State
	for i := range 900 {
		now := t0.Add(time.Duration(i) * time.Second)
		o := s.loaded(now, 4, 0.15, rng)
		for k := range o.Pods {
			o.Pods[k].Paces[0].FirstTokenSeconds, o.Pods[k].Paces[0].FirstTokensPerSecond = []float64{0.05, 2}[rng.IntN(2)], 3
		}
		d, state = Decide(p, o, state, now)
	}
	if got := d.Inputs[0].Target; got > 9 {
		t.Errorf("target %.1f, want about the given 8", got)
	}
}

func TestCapacityIsBounded(t *testing.T) {
	s, rng := server{0.008, 33}, rand.New(rand.NewPCG(5, 6))
	learn := func(limit, rho float64, n int) float64 {
		p := sloPolicy(8, limit)
		var d Decision
		var state State
		for i := range n {
			now := t0.Add(time.Duration(i) * time.Second)
			d, state = Decide(p, s.loaded(now, 4, rho, rng), state, now)
		}
		return d.Inputs[0].Target
	}
	if got := learn(0.015, 0.02, 600); got > 8 {
		t.Errorf("of batches of one request a target of %.1f was learned", got)
	}
	if got := learn(0.015, 0.3, 10); got != 8 {
		t.Errorf("in ten seconds a target of %.1f was learned", got)
	}
	if got := learn(0.005, 0.3, 600); got != 8 {
		t.Errorf("a limit that an idle server misses: target %.1f, want the given 8", got)
	}
	if got := learn(10, 0.3, 600); got > 8*targetRange {
		t.Errorf("a limit of 10 s: target %.1f", got)
	}
}

// TestBatchingLaw holds the number of replicas to the load that they carry:
// servers at three times their target do not need three times as many.
func TestBatchingLaw(t *testing.T) {
	p := sloPolicy(8, 0)
	batch := func(x float64) int32 {
		d, _ := Decide(p, seen(t0, x, x, x, x), State{}, t0)
		return d.Replicas
	}
	s := server{0.01, 12} // at a target of 8, 40 % of the most
	for _, n := range []int32{2, 3, 4, 5} {
		x, _ := s.at(0.4 * float64(n) / 4)
		if got := batch(x); got != n {
			t.Errorf("at %.1f requests each, 4 replicas become %d, want %d", x, got, n)
		}
	}
	// What has piled up counts, but little.
	if full, piled := batch(16), batch(80); piled <= full || piled > full+4 {
		t.Errorf("4 replicas become %d with twice their target, %d with ten times", full, piled)
	}
	p.Signals[0].Law = Linear
	if got := batch(24); got != 12 {
		t.Errorf("linear: %d, want 12", got)
	}
}

func TestAutoWindow(t *testing.T) {
	f := func(startup, want time.Duration) {
		t.Helper()
		p := Policy{Down: Rules{Window: Auto}, Startup: startup}
		if got := p.DownWindow(); got != want {
			t.Errorf("start-up %v: window %v, want %v", startup, got, want)
		}
	}
	f(0, DefaultDownWindow)
	f(30*time.Second, DefaultDownWindow)
	f(15*time.Minute, 15*time.Minute)

	// Step by step: a fifth of the replicas in a quarter of a start-up.
	p := utilPolicy()
	p.Max, p.Down.Window, p.Startup = 100, Auto, 2*time.Minute
	got, _ := run(p, State{}, func(_ int, cur int32, now time.Time) Observation {
		values := make([]float64, cur)
		for i := range values {
			values[i] = 60 * 5 / float64(cur)
		}
		return seen(now, values...)
	}, 700, 20)
	if got[295] != 20 || got[301] != 16 || got[321] != 16 || got[335] != 12 {
		t.Errorf("replicas after 295, 301, 321 and 335 s: %d %d %d %d, want 20 16 16 12", got[295], got[301], got[321], got[335])
	}
}

// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale/peers"
)

// rise is a load that rises, stays and falls, in busy replicas, and how it is scaled.
type rise struct {
	low, high, slope, hold float64 // replicas; seconds up or down, and at the height
	startup                float64 // seconds
	window                 time.Duration
	target                 float64 // percent
	open                   bool    // what is measured counts what waits: requests per replica, and not a share of it
}

func (r *rise) at(s float64) float64 {
	part := 1.0
	if s = min(s-20, r.slope+r.hold+r.slope-(s-20)); s < r.slope {
		part = max(0, s/r.slope)
	}
	return r.low + (r.high-r.low)*part
}

// followed is what became of a ramp.
type followed struct {
	reached    float64 // seconds until as many serve as keep the utilisation within the tolerance; NaN: never
	gpuSeconds float64
	excess     float64 // replica-seconds beyond what the target needs at the load's height
	most       int
}

const mostReplicas = 40

// follow replays the ramp on a fluid queue of at most three seconds: decide returns the replicas,
// once a second.
func (r *rise) follow(decide func(now time.Time, pods []Replica, replicas int32) int32) (f followed) {
	var pods []Replica
	grow := func(n int32, now time.Time) {
		for int32(len(pods)) < n {
			pods = append(pods, Replica{Name: fmt.Sprint(len(pods)), Phase: Starting, Since: now})
		}
		pods = pods[:n]
	}
	need := math.Ceil(r.high/(r.target/100*(1+DefaultTolerance)) - 1e-9)
	planned := math.Ceil(r.high/(r.target/100) - 1e-9)
	grow(int32(math.Ceil(r.low/(r.target/100))), t0.Add(-time.Hour))
	queue := 0.0
	f.reached = math.NaN()
	for s := 0.0; s < 20+2*r.slope+r.hold+400; s++ {
		now, serving := t0.Add(time.Duration(s)*time.Second), 0
		for k := range pods {
			if p := &pods[k]; p.Phase == Starting && now.Sub(p.Since).Seconds() >= r.startup {
				p.Phase, p.Since = Serving, now
			}
			if pods[k].Phase == Serving {
				serving++
			}
		}
		work := queue + r.at(s)
		served := min(work, float64(serving))
		shown := served
		if r.open {
			shown = work
		}
		queue = min(work-served, 3*float64(serving))
		for k := range pods {
			pods[k].Readings = nil
			if pods[k].Phase == Serving {
				pods[k].Readings = []Reading{{Value: 100 * shown / float64(serving), At: now, OK: true}}
			}
		}
		if math.IsNaN(f.reached) && float64(serving) >= need {
			f.reached = s
		}
		f.gpuSeconds += float64(len(pods))
		f.excess += max(0, float64(len(pods))-planned)
		f.most = max(f.most, len(pods))
		grow(decide(now, pods, int32(len(pods))), now)
	}
	return f
}

// ours decides as Decide does.
func (r *rise) ours(tolerance float64) followed {
	signal := Signal{Name: "Utilization", Unit: "%", Target: r.target, Ceiling: 100, Aggregate: gpu.Mean}
	if r.open {
		signal.Ceiling = 0
	}
	p := Policy{
		Min: 1, Max: mostReplicas, Startup: time.Duration(r.startup) * time.Second,
		Signals: []Signal{signal},
		Up:      Rules{Tolerance: tolerance}, Down: Rules{Tolerance: tolerance, Window: r.window},
	}
	var s State
	return r.follow(func(now time.Time, pods []Replica, n int32) int32 {
		var d Decision
		d, s = Decide(p, Observation{Replicas: n, Pods: pods}, s, now)
		return d.Replicas
	})
}

// hpa decides as the HorizontalPodAutoscaler on the same values, with the same target and window
// and no limit of its rate, at each sync.
func (r *rise) hpa(sync int) followed {
	rules := peers.Rules{Tolerance: DefaultTolerance, Policies: []peers.RatePolicy{{Percent: true, Value: 900, Period: 1}}}
	h := peers.HPA{Kind: peers.PodsAverage, MilliTarget: int64(1000 * r.target), Min: 1, Max: mostReplicas, Up: rules, Down: peers.DefaultDown()}
	h.Down.Window = int(r.window.Seconds())
	return r.follow(func(now time.Time, pods []Replica, n int32) int32 {
		second := int(now.Sub(t0).Seconds())
		if second%sync != 0 {
			return n
		}
		reading := peers.Reading{Spec: int(n), Status: int(n)}
		for k := range pods {
			pod := peers.Pod{Ready: pods[k].Phase == Serving}
			if pod.Ready && now.Sub(pods[k].Since) >= warm {
				pod.HasSample, pod.Milli = true, int64(1000*pods[k].Readings[0].Value)
			}
			reading.Pods = append(reading.Pods, pod)
		}
		return int32(h.Sync(second, &reading))
	})
}

// On a share of a GPU, what is needed is reached no later than by a HorizontalPodAutoscaler with
// the same target and window, for no more GPU-seconds, and with less beyond the need: over
// ramps, steps and saturations. On requests, whose number has no ceiling, the mean of a few
// seconds costs some of that time. That HPA syncs each second; Kubernetes' default is 15.
func TestRampsAreFollowedNoLaterThanByTheHPA(t *testing.T) {
	t.Run("share", func(t *testing.T) { followRamps(t, false, bars{later: 4, reached: 1, default15: 0.9, excess: 0.5}) })
	t.Run("requests", func(t *testing.T) { followRamps(t, true, bars{later: 6, reached: 1.02, default15: 0.96, excess: 0.9}) })
}

// bars are how much of the HPA's ours may be: later in so many ramps, else as a share.
type bars struct {
	later                      int
	reached, default15, excess float64
}

func followRamps(t *testing.T, open bool, most bars) {
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...float64) float64 { return of[rng.IntN(len(of))] }
	var sum, same, theirs, slow followed
	later := 0
	add := func(to *followed, f followed) {
		to.reached += f.reached
		to.gpuSeconds, to.excess, to.most = to.gpuSeconds+f.gpuSeconds, to.excess+f.excess, to.most+f.most
	}
	for range 120 {
		r := rise{
			low: 0.1 + 0.5*rng.Float64(), high: 0.6 + 5.4*rng.Float64(), slope: pick(1, 10, 30, 60, 120),
			startup: pick(5, 12, 30, 60, 120), target: pick(40, 50, 60, 70, 80, 90), open: open,
		}
		r.hold = 6*r.startup + 60 + 120*rng.Float64()
		r.window = time.Duration(max(r.startup, pick(10, 60, 300))) * time.Second
		ours, hpa, late := r.ours(AutoTolerance), r.hpa(1), r.hpa(15)
		if math.IsNaN(ours.reached) || math.IsNaN(hpa.reached) || math.IsNaN(late.reached) {
			t.Fatalf("%+v: reached after %v s, by the HPA after %v and %v s", r, ours.reached, hpa.reached, late.reached)
		}
		// The mean of a few seconds lags each step of a slow ramp, and may cost one start.
		if ours.reached > hpa.reached+10 {
			if later++; later > most.later || ours.reached > hpa.reached+10+2*r.startup {
				t.Errorf("%+v: reached after %v s, by the HPA after %v s; later by far %d times", r, ours.reached, hpa.reached, later)
			}
		}
		add(&sum, ours)
		add(&same, r.ours(DefaultTolerance))
		add(&theirs, hpa)
		add(&slow, late)
	}
	t.Logf("ours %+v, with the HPA's tolerance %+v; the HPA, each second %+v, each 15 s %+v", sum, same, theirs, slow)
	if sum.reached > most.reached*theirs.reached || sum.reached > most.default15*slow.reached {
		t.Errorf("reached after %v s in all, by the HPA after %v s and %v s", sum.reached, theirs.reached, slow.reached)
	}
	if sum.gpuSeconds > theirs.gpuSeconds || same.gpuSeconds > 0.99*theirs.gpuSeconds {
		t.Errorf("%v GPU-seconds, and %v with its tolerance; the HPA %v", sum.gpuSeconds, same.gpuSeconds, theirs.gpuSeconds)
	}
	if sum.excess > most.excess*theirs.excess {
		t.Errorf("%v replica-seconds beyond the need, the HPA %v", sum.excess, theirs.excess)
	}
}

// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"fmt"
	"slices"

	"github.com/gpupilot/gpupilot/internal/peers"
	"github.com/gpupilot/gpupilot/internal/policy"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// Contender is an autoscaler with its settings.
type Contender struct {
	Name   string
	Family string // hpa, keda, kpa, fixed, oracle, reactive or ours
	Class  Class

	make func(*replay) (autoscaler, error)
}

// blind says whether it looks at no GPU.
func (c *Contender) blind() bool { return c.Family != "ours" && c.Class != OnGPU }

// Class is what an autoscaler looks at: it is compared with peers of its class.
type Class string

// The classes.
const (
	OnRequests Class = "requests" // what the server tells: queue, running
	OnGPU      Class = "gpu"      // what the GPUs tell
	OnNothing  Class = ""         // fixed, oracle: for reference
)

// HPA is a HorizontalPodAutoscaler. Window is its scale-down stabilisation in
// seconds.
func HPA(kind peers.Kind, sig Signal, target float64, window int, tolerance float64, chain Chain) Contender {
	family, class := "hpa", OnRequests
	if sig.ofGPU() {
		class = OnGPU
	}
	if kind == peers.ExternalAverage {
		family = "keda"
	}
	return Contender{
		Name: fmt.Sprintf("%s-%s %s=%g %ds tol=%g %s", family, [...]string{"pods", "object", "external"}[kind],
			sig, target, window, tolerance, chain.Name),
		Family: family, Class: class,
		make: func(r *replay) (autoscaler, error) {
			up, down := peers.DefaultUp(), peers.DefaultDown()
			up.Tolerance, down.Tolerance, down.Window = tolerance, tolerance, window
			return &hpa{
				model:  peers.HPA{Kind: kind, MilliTarget: milli(target), Min: r.cfg.Min, Max: r.cfg.Max, Up: up, Down: down},
				signal: sig, chain: chain.seeded(r.cfg.Seed),
			}, nil
		},
	}
}

// KPA is Knative's autoscaler on concurrency, with its stable window and
// scale-down-delay in seconds.
func KPA(target float64, window, delay int) Contender {
	return Contender{
		Name: fmt.Sprintf("kpa concurrency=%g %ds delay=%ds", target, window, delay), Family: "kpa", Class: OnRequests,
		make: func(r *replay) (autoscaler, error) {
			return &kpa{target: target, window: window, delay: delay, min: r.cfg.Min, max: r.cfg.Max}, nil
		},
	}
}

// Fixed is a number of replicas: share of what the peak asks for.
func Fixed(share float64) Contender {
	return Contender{
		Name: fmt.Sprintf("fixed %g x peak", share), Family: "fixed",
		make: func(r *replay) (autoscaler, error) {
			return fixed{min(max(r.cfg.Min, ceil(share*r.peak)), r.cfg.Max)}, nil
		},
	}
}

// Oracle knows the load that comes and how long each start will take. It loads
// its replicas to a share of what their limits let them take, by the load's mean
// over some seconds.
func Oracle(share float64, over int) Contender {
	return Contender{
		Name: fmt.Sprintf("oracle %g %ds", share, over), Family: "oracle",
		make: func(r *replay) (autoscaler, error) {
			return newOracle(r.need, share, over, r.cfg.Min, r.cfg.Max), nil
		},
	}
}

// Oracles are schedules from cheap to careful: the cheapest of them that keeps
// an objective is what GPU-hours are compared with. Beside a grid of peers they
// cost little.
func Oracles() []Contender {
	return oracles([]int{needSeconds, 120, 600},
		2.5, 2, 1.7, 1.5, 1.35, 1.25, 1.15, 1.07, 1, 0.93, 0.87, 0.8, 0.73, 0.67, 0.6, 0.5, 0.4, 0.3)
}

// FewOracles are some of them, for a replay without peers.
func FewOracles() []Contender { return oracles([]int{needSeconds}, 1.7, 1.35, 1.15, 1, 0.8, 0.6) }

func oracles(averages []int, shares ...float64) (out []Contender) {
	for _, over := range averages {
		for _, share := range shares {
			out = append(out, Oracle(share, over))
		}
	}
	return out
}

// Reactive knows what every request costs but not the future. Window is how
// many seconds it waits before it goes down.
func Reactive(headroom float64, window int) Contender {
	return Contender{
		Name: fmt.Sprintf("reactive %g %ds", headroom, window), Family: "reactive",
		make: func(r *replay) (autoscaler, error) {
			return &reactive{need: r.need, headroom: headroom, window: window, min: r.cfg.Min, max: r.cfg.Max}, nil
		},
	}
}

// withoutQueries is a policy without the signals that only a PromQL backend
// could tell, which is not simulated, where others are left. Nothing wakes it from
// zero replicas then, so that it keeps one.
func withoutQueries(p policy.Compiled) policy.Compiled {
	var signals []scale.Signal
	var sources []policy.Source
	for i, s := range p.Sources {
		if s.Kind != policy.Query {
			signals, sources = append(signals, p.Policy.Signals[i]), append(sources, s)
		}
	}
	if len(sources) == 0 || len(sources) == len(p.Sources) {
		return p
	}
	p.Policy.Signals, p.Sources = signals, sources
	p.Policy.Min = max(p.Policy.Min, 1)
	return p
}

// OursAtLimit is Ours with the service's own limits instead of those that the
// policy names.
func OursAtLimit(name string, p policy.Compiled) Contender {
	c := Ours(name, p)
	p = withoutQueries(p)
	c.make = func(r *replay) (autoscaler, error) {
		at := p
		at.Policy.Signals = slices.Clone(p.Policy.Signals)
		for i := range at.Policy.Signals {
			s := &at.Policy.Signals[i]
			if s.Limit > 0 {
				s.Limit = r.cfg.Model.ITLLimit
			}
			if s.FirstLimit > 0 {
				s.FirstLimit = r.cfg.Model.TTFTLimit
			}
		}
		return r.ours(at)
	}
	return c
}

// Ours is the decision engine with a policy. It is of the class OnGPU if the
// policy reads nothing but GPUs.
func Ours(name string, p policy.Compiled) Contender {
	class, all := OnGPU, len(p.Sources)
	if p = withoutQueries(p); len(p.Sources) < all {
		name += ", without its queries"
	}
	for _, s := range p.Sources {
		if s.Kind != policy.GPU {
			class = OnRequests
		}
	}
	return Contender{
		Name: name, Family: "ours", Class: class,
		make: func(r *replay) (autoscaler, error) { return r.ours(p) },
	}
}

// ours is the decision engine with a policy, within the policy's own bounds
// where the load is replayed as recorded. They are not for a load that is scaled.
func (r *replay) ours(p policy.Compiled) (autoscaler, error) {
	low, high := r.cfg.Min, r.cfg.Max
	if r.cfg.Peak <= 0 {
		low = min(max(low, int(p.Policy.Min)), high)
		high = max(low, min(high, int(p.Policy.Max)))
	}
	return newOurs(p, low, high)
}

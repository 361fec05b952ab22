// SPDX-License-Identifier: Apache-2.0

// Package scale decides how many replicas a workload should have. Decide is a
// pure function of a Policy, an Observation, the State that the last call
// returned and the time: it reads no clock, does no I/O and knows nothing of
// Kubernetes. The controller, the backtester and the tests call the same one.
//
// Four rules hold everywhere: replicas that are still starting are capacity on
// the way and are never averaged with those that serve; what is missing is not
// zero and never lowers anything; the result lies within the policy's bounds;
// and every change of mind is a Step that says why.
package scale

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// TargetType says what a signal's target is counted per.
type TargetType uint8

// The target types, named as in the HorizontalPodAutoscaler.
const (
	AverageValue TargetType = iota // per serving replica
	Value                          // for the workload as a whole
)

// Law says how a signal follows the load.
type Law uint8

// The laws.
const (
	Linear   Law = iota // twice the load, twice the value: rates, queues, power, activity
	Batching            // requests in a server's batch: they slow each other down, so that twice the load makes for more than twice of them
)

// Signal is one thing that the policy looks at.
type Signal struct {
	Name   string     // as the user wrote it, for sentences
	Unit   string     // of Target and of readings, for sentences
	Type   TargetType // what Target is counted per
	Target float64    // > 0, in the readings' unit

	// Law says how an AverageValue follows the load.
	Law Law

	// Limit is the time between a request's tokens, and FirstLimit that to its first,
	// in seconds, that replicas shall keep. If one is set, the target of a Batching
	// signal is learned from Replica.Paces, and Target is where learning begins; if
	// neither is (0), Target it is.
	Limit, FirstLimit float64

	// Aggregate is how the replicas' readings become the workload's value for a
	// Value target: gpu.Mean, gpu.Sum or gpu.Max. An AverageValue target sums.
	Aggregate gpu.Aggregation

	// Activation, if set, is the total over the workload above which a workload
	// at zero replicas is started, and at or below which it may go to zero.
	Activation *float64

	// Ceiling is the value at which the signal stops telling, per replica: 100
	// for a utilisation in percent, 1 for a ratio; 0 if it has none.
	Ceiling float64
}

// Learned says whether the target is.
func (s *Signal) Learned() bool { return s.Law == Batching && (s.Limit > 0 || s.FirstLimit > 0) }

// Select says which of several rate policies counts.
type Select uint8

// The selections, named as in the HorizontalPodAutoscaler.
const (
	SelectMax Select = iota
	SelectMin
	SelectDisabled // no scaling in this direction
)

// RatePolicy bounds how far replicas may move within a period.
type RatePolicy struct {
	Percent bool  // Value is a percentage of the replicas at the period's start, else a number of pods
	Value   int32 // > 0
	Period  time.Duration
}

// Rules bound scaling in one direction.
type Rules struct {
	// Window is the stabilisation: the most (down) or least (up) wanted
	// within it counts. Auto, downward, goes with the start-up. Of a policy
	// whose way down has no window, demand is not averaged, either.
	Window    time.Duration
	Policies  []RatePolicy // none: unbounded
	Select    Select
	Tolerance float64 // relative deviation from target that is let be, such as 0.1
}

// MissingMode says what to do when no signal has been readable for longer
// than Policy.MissingAfter.
type MissingMode uint8

// The modes. In none of them does missing data lower the replicas.
const (
	MissingHold  MissingMode = iota // keep what is there
	MissingMax                      // go to Policy.Max
	MissingFloor                    // go to at least Policy.MissingFloor
)

// Policy is what the user asked for, in the engine's terms. It is comparable
// to no clock and to no cluster; package policy makes it from a GPUAutoscaler.
type Policy struct {
	Min, Max int32 // 0 ≤ Min ≤ Max, Max ≥ 1
	Signals  []Signal

	Up, Down Rules

	// Startup is how long a replica takes to serve, as the user declared or as
	// was learned; 0: not known yet. A starting replica older than twice this
	// (and LeastStartup at least) no longer counts as capacity on the way.
	Startup time.Duration

	Missing      MissingMode
	MissingFloor int32
	MissingAfter time.Duration // 0: DefaultMissingAfter

	// MaxAge is the age above which a reading does not count. 0: DefaultMaxAge.
	MaxAge time.Duration

	// MaxGPUs is the budget for the workload, GPUsPerReplica what one replica
	// takes. 0: no budget.
	MaxGPUs, GPUsPerReplica int32
}

// What is assumed where the policy says nothing.
const (
	// DefaultMaxAge is three intervals of an agent at its default 1 s, and no
	// less than the 5 s after which an agent itself stops showing a value.
	DefaultMaxAge = 5 * time.Second
	// DefaultMissingAfter lets an agent or the controller restart without
	// anything happening.
	DefaultMissingAfter = 60 * time.Second
	// DefaultStartup is how long a replica is taken to start where that is not
	// known; the field reports 2 to 7 minutes for a server of large models.
	DefaultStartup = 7 * time.Minute
	// LeastStartup is the least that a replica is taken to need where it is known:
	// a first start from a registry is slower than those from a node's cache.
	LeastStartup = 3 * time.Minute
	// Auto as Rules.Window of the way down is as long as a replica takes to start,
	// for what is taken away needs that long to come back, and DefaultDownWindow at
	// least.
	Auto time.Duration = -1
	// DefaultDownWindow is the HorizontalPodAutoscaler's own default. In replays of
	// recorded load ten minutes save some misses and two some GPU-hours, and
	// neither more than it costs.
	DefaultDownWindow = 5 * time.Minute
	// DefaultTolerance is the HorizontalPodAutoscaler's own default.
	DefaultTolerance = 0.1
)

const (
	// saturation is the share of a signal's ceiling above which the signal is
	// taken as censored: the load may be anything from here up.
	saturation = 0.92
	// probeLimit bounds a probe: it asks for no more than this multiple of the
	// replicas that the censored load needs at the least.
	probeLimit = 1.4
	// probeGrowth bounds a probe by the replicas that serve.
	probeGrowth = 2.0
	// descent is the percentage of the replicas that may go within descentPeriod
	// and a quarter of a start-up, where Auto is on and no policy says otherwise: a
	// mistake is found before it has cost much.
	descent       = 20
	descentPeriod = 15 * time.Second
	// warm is how long after a replica began to serve a reading tells nothing of
	// it yet: a second for the stamp of its readiness, which Kubernetes cuts to
	// whole seconds, and one over which NVML averages a utilisation.
	warm = 2 * time.Second
	// drainShare is how long, of the time that a workload was saturated, new
	// capacity may work off what had piled up. A step doubles the replicas at
	// most; if that is enough for a target of 60 %, the excess before it was at
	// most a tenth of the new capacity and the spare after it four tenths, so a
	// constant load is worked off in a quarter of the time; one that was rising
	// meanwhile, which is why it saturated, in about half of that.
	drainShare = 0.15
	// drainLimit bounds it: nobody waits longer for an answer.
	drainLimit = 30 * time.Second
	// coverage is the share of the serving replicas that must have a fresh
	// reading before a signal may lower anything.
	coverage = 0.6
)

// maxAge is the age above which a reading does not count.
func (p *Policy) maxAge() time.Duration { return orDefault(p.MaxAge, DefaultMaxAge) }

// missingAfter is how long nothing must be readable before the fallback.
func (p *Policy) missingAfter() time.Duration {
	return orDefault(p.MissingAfter, DefaultMissingAfter)
}

// credit is how long a starting replica counts as capacity on the way.
func (p *Policy) credit() time.Duration {
	if p.Startup <= 0 {
		return 2 * DefaultStartup
	}
	return 2 * max(p.Startup, LeastStartup)
}

// DownWindow is the scale-down stabilisation, no shorter than the start-up: what
// is taken away needs as long to come back. Without one asked for (0) there is none.
func (p *Policy) DownWindow() time.Duration {
	switch {
	case p.Down.Window == 0:
		return 0
	case p.Down.Window > 0:
		return max(p.Down.Window, p.Startup)
	}
	return max(DefaultDownWindow, p.Startup)
}

// downPolicies are the rate policies of the way down.
func (p *Policy) downPolicies() []RatePolicy {
	if p.Down.Window >= 0 || len(p.Down.Policies) > 0 {
		return p.Down.Policies
	}
	period := max(descentPeriod, p.Startup/4)
	return []RatePolicy{{Percent: true, Value: descent, Period: period}, {Value: 1, Period: period}}
}

// ceiling is the highest number of replicas that bounds and budget allow.
func (p *Policy) ceiling() int32 {
	n := p.Max
	if p.MaxGPUs > 0 && p.GPUsPerReplica > 0 {
		n = min(n, max(p.MaxGPUs/p.GPUsPerReplica, p.Min))
	}
	return n
}

func orDefault(d, fallback time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return fallback
}

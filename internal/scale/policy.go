// SPDX-License-Identifier: Apache-2.0

// Package scale decides how many replicas a workload should have. Decide is a
// pure function of a Policy, an Observation, the State that the last call
// returned and the time: it reads no clock, does no I/O and knows nothing of
// Kubernetes. The controller, the backtester and the tests call the same one.
//
// Five rules hold everywhere:
//
//   - Starting replicas count as capacity, and are never averaged with those that
//     serve.
//   - Missing data is not zero, and never lowers the number of replicas.
//   - The signals do not influence each other. Each has a state of its own, and
//     the most that one of them wants counts.
//   - The result lies within the policy's bounds. Replicas that leave stay beside it for Policy.Drain.
//   - Every rule that is applied is a Step with its numbers.
package scale

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// TargetType is what a signal's target is counted per.
type TargetType uint8

// The target types, named as in the HorizontalPodAutoscaler.
const (
	AverageValue TargetType = iota // per serving replica
	Value                          // for the workload as a whole
)

// Law is how a signal follows the load.
type Law uint8

// The laws.
const (
	Linear   Law = iota // twice the load, twice the value: rates, queues, power, activity
	Batching            // requests in flight at a server: they slow each other down, so that twice the load means more than twice as many
)

// Signal is one measure of the load.
type Signal struct {
	Name   string     // as the user wrote it, for sentences
	Unit   string     // of Target and of readings, for sentences
	Type   TargetType // what Target is counted per
	Target float64    // > 0, in the readings' unit

	// Law is how an AverageValue follows the load.
	Law Law

	// Limit is the longest acceptable time between a request's tokens, FirstLimit
	// that to its first token, in seconds; 0: none. With either, the target of a
	// Batching signal is learned from Replica.Paces, and Target counts until then.
	Limit, FirstLimit float64

	// Objective is the share of the requests that keep the limits, below 1, such as 0.99;
	// 0: none.
	Objective float64
	// Over is the time over which the objective is judged, and BudgetUse the share of the
	// misses that it allows that is to be used, above 0.
	Over      time.Duration
	BudgetUse float64

	// Aggregate is how the replicas' readings become the workload's value for a
	// Value target: gpu.Mean, gpu.Sum or gpu.Max. An AverageValue target adds them up.
	Aggregate gpu.Aggregation

	// Activation, if set, is the workload's total above which it leaves zero
	// replicas, and at or below which it may go to zero.
	Activation *float64

	// Fallback is what happens while the signal has no value.
	Fallback Fallback

	// Ceiling is the highest value that a replica can have: 100 for a utilisation
	// in percent, 1 for a ratio; 0: there is none.
	Ceiling float64
}

// FallbackMode is what to do while one signal has no value.
type FallbackMode uint8

// The modes.
const (
	FallbackHold     FallbackMode = iota // no scale-down; Policy.Missing applies when no signal has a value
	FallbackIgnore                       // the other signals decide
	FallbackMax                          // after Policy.MissingAfter it asks for Policy.Max, and holds until then
	FallbackReplicas                     // likewise, for Fallback.Replicas
)

// Fallback is what to do while one signal has no value.
type Fallback struct {
	Mode     FallbackMode
	Replicas int32
}

// Learned reports whether the target is learned.
func (s *Signal) Learned() bool { return s.Law == Batching && (s.Limit > 0 || s.FirstLimit > 0) }

// isShare reports whether the signal is a share of what a replica has, such as the
// activity of its GPUs.
func (s *Signal) isShare() bool { return s.Ceiling > 0 }

// averagedOver is the time constant of the demand's average.
func (s *Signal) averagedOver() time.Duration {
	if s.isShare() {
		return shareSpan
	}
	return levelSpan
}

// Select is which of several rate policies counts.
type Select uint8

// The selections, named as in the HorizontalPodAutoscaler.
const (
	SelectMax Select = iota
	SelectMin
	SelectDisabled // no scaling in this direction
)

// RatePolicy bounds the change of replicas within a period.
type RatePolicy struct {
	Percent bool  // Value is a percentage of the replicas at the period's start, else a number of pods
	Value   int32 // > 0
	Period  time.Duration
}

// Rules bound scaling in one direction.
type Rules struct {
	// Window is the stabilisation window: the most (down) or least (up) that was
	// wanted within it counts. Auto, downward, depends on the start-up. Without a
	// window downward the demand is not averaged.
	Window   time.Duration
	Policies []RatePolicy // none: unbounded
	Select   Select
	// ToZero is how long no signal must have been above its activation before the last
	// replica is removed, in place of Window; 0: Window counts. Downward only.
	ToZero time.Duration
	// Tolerance is the relative deviation from the target that changes nothing, such as
	// 0.1. AutoTolerance depends on the direction and the signal.
	Tolerance float64
}

// MissingMode is what to do when no signal has been readable for longer than
// Policy.MissingAfter.
type MissingMode uint8

// The modes. None of them lowers the number of replicas.
const (
	MissingHold  MissingMode = iota // keep the number
	MissingMax                      // go to Policy.Max
	MissingFloor                    // go to at least Policy.MissingFloor
)

// Policy is a GPUAutoscaler's specification in the engine's terms. Package policy
// makes it.
type Policy struct {
	Min, Max int32 // 0 ≤ Min ≤ Max
	InForce  InForce
	// KeepZero is set if replicas that others have set to 0 stay 0 while Min is above 0.
	KeepZero bool

	Signals []Signal
	// Formula, if set, makes the wanted replicas of what the signals ask for.
	Formula *Formula

	Up, Down Rules

	// Drain is how long a replica may take to finish its requests before a scale-down
	// removes it; 0: it is removed at once.
	Drain time.Duration

	// Pair binds the replicas to those of another workload.
	Pair Pair

	// Idle is what happens once nobody uses the workload.
	Idle IdlePolicy

	// Startup is how long a replica takes to serve, declared or learned; 0: not
	// known yet. A starting replica that is older than twice this, or than twice
	// LeastStartup if that is more, no longer counts as capacity.
	Startup time.Duration
	// TypicalStartup is the 75th percentile, which an objective's plan counts with; 0:
	// Startup.
	TypicalStartup time.Duration

	Missing      MissingMode
	MissingFloor int32
	MissingAfter time.Duration // 0: DefaultMissingAfter

	// MaxAge is the age above which a reading does not count. 0: DefaultMaxAge.
	MaxAge time.Duration

	// MaxGPUs is the workload's budget, GPUsPerReplica how many one replica takes.
	// 0: no budget.
	MaxGPUs, GPUsPerReplica int32
}

// The defaults.
const (
	// DefaultMaxAge is the age at which an agent with the default interval of 1 s
	// stops showing a value.
	DefaultMaxAge = 5 * time.Second
	// DefaultMissingAfter is longer than a restart of an agent or the controller.
	DefaultMissingAfter = 60 * time.Second
	// DefaultStartup is assumed where the start-up is not known. 2 to 7 minutes are
	// reported for servers of large models.
	DefaultStartup = 7 * time.Minute
	// LeastStartup is the shortest start-up that a credit is computed from: a first
	// start, with a pull from a registry, is slower than one from a node's cache.
	LeastStartup = 3 * time.Minute
	// Auto as Rules.Window downward is the start-up, since a removed replica needs
	// that long to come back, or DefaultDownWindow if that is longer.
	Auto time.Duration = -1
	// DefaultDownWindow is the HorizontalPodAutoscaler's default. In replays of
	// recorded load, ten minutes save some missed limits, and two minutes some
	// GPU-hours; neither saves more than it costs.
	DefaultDownWindow = 5 * time.Minute
	// DefaultTolerance is the HorizontalPodAutoscaler's default.
	DefaultTolerance = 0.1
	// AutoTolerance as Rules.Tolerance is DefaultTolerance, but 0 upward for a share of a
	// GPU. In replays of recorded load, a tolerance there misses more than it saves.
	AutoTolerance = -1.0
)

const (
	// levelSpan is the time constant of the average. In replays of recorded load, 5
	// to 90 s cost about as much as they save. The shorter it is, the fewer requests
	// miss their limits.
	levelSpan = 5 * time.Second
	// shareSpan is that of a share of a GPU. A window keeps the highest of a noisy demand,
	// so that noise costs replicas. In replays of recorded load, 20 to 40 s miss least for
	// the same GPU-hours, of 5 to 60 s.
	shareSpan = 30 * time.Second
	// quickSpan is the time constant of the average that a share of a GPU may exceed the
	// HorizontalPodAutoscaler's tolerance by. It lags a ramp by as long. On ramps of one to two
	// minutes, shareSpan alone needs up to 20 s more than the HorizontalPodAutoscaler; readings
	// as they are take the noise of ten replicas for load.
	quickSpan = 3 * time.Second
	// levelSettles is how many time constants a level takes to a new demand that it takes for
	// noise, within a twentieth.
	levelSettles = 3
	// saturation is the share of a signal's ceiling from which it no longer shows
	// how much load there is.
	saturation = 0.92
	// probeLimit bounds a probe, as a multiple of the replicas that the value at the
	// ceiling asks for.
	probeLimit = 1.4
	// probeGrowth bounds a probe, as a multiple of the serving replicas. With a target of up to
	// two thirds of the ceiling, what the value asks for is as much. 2 reaches what a step needs
	// 9 s sooner in the mean of random ramps than the HorizontalPodAutoscaler, and 1.5 2 s; with 2
	// its highest number is 3 % above the HorizontalPodAutoscaler's, and with 1.5 2 %.
	probeGrowth = 1.5
	// descent is the percentage of the replicas that may be removed within the
	// longer of descentPeriod and a quarter of a start-up, with Auto and without rate
	// policies. A mistake shows before it costs much.
	descent       = 20
	descentPeriod = 15 * time.Second
	// warm is how long after a replica began to serve its readings do not count: one
	// second because Kubernetes cuts the time of its readiness to whole seconds, and
	// one over which NVML averages a utilisation.
	warm = 2 * time.Second
	// drainShare is how long new replicas may process the backlog, as a share of the
	// time that the signal was saturated. Were the replicas doubled, and that enough for a
	// target of 60 %, the excess load was at most a tenth of the
	// new capacity, and four tenths are spare. The backlog of a constant load then
	// takes a quarter of the time, and that of a rising one about half of that.
	drainShare = 0.15
	// drainLimit bounds this time: clients do not wait longer for an answer.
	drainLimit = 30 * time.Second
	// coverage is the share of the serving replicas that must have a fresh reading
	// before a signal may lower the number, even if the others serve only just now, and
	// before it counts as saturated.
	coverage = 0.6
	// startsWithin is the percentage of a start-up for which replicas that were added are waited
	// for: that is a 95th percentile, and pods are created some seconds after they are asked for.
	startsWithin = 125
	// sickOf is how many replicas must serve for each one without a reading. With fewer, those
	// may carry the load that the others do not show.
	sickOf = 12
	// outlierFrom is the multiple of the others' mean above which a value is that of a server
	// that hangs: of outlierOf or more replicas one, and one for each sickOf.
	outlierFrom, outlierOf = 3.0, 8
)

// maxAge is the age above which a reading does not count.
func (p *Policy) maxAge() time.Duration { return orDefault(p.MaxAge, DefaultMaxAge) }

// missingAfter is how long no signal must be readable before the fallback.
func (p *Policy) missingAfter() time.Duration {
	return orDefault(p.MissingAfter, DefaultMissingAfter)
}

// credit is how long a starting replica counts as capacity.
func (p *Policy) credit() time.Duration {
	if p.Startup <= 0 {
		return 2 * DefaultStartup
	}
	return 2 * max(p.Startup, LeastStartup)
}

// patience is how long starting replicas are waited for.
func (p *Policy) patience() time.Duration {
	return orDefault(p.Startup, DefaultStartup) * startsWithin / 100
}

// typicalStartup is what a plan counts with.
func (p *Policy) typicalStartup() time.Duration {
	return orDefault(p.TypicalStartup, orDefault(p.Startup, DefaultStartup))
}

// DownWindow is the scale-down stabilisation window. It is no shorter than the
// start-up, since a removed replica needs that long to come back. 0: there is
// none.
func (p *Policy) DownWindow() time.Duration {
	switch {
	case p.Down.Window == 0:
		return 0
	case p.Down.Window > 0:
		return max(p.Down.Window, p.Startup)
	}
	return max(DefaultDownWindow, p.Startup)
}

// upTolerance is the tolerance upward of a signal.
func (p *Policy) upTolerance(s *Signal) float64 {
	switch {
	case p.Up.Tolerance >= 0:
		return p.Up.Tolerance
	case s.isShare():
		return 0
	}
	return DefaultTolerance
}

// downTolerance is the tolerance downward of any signal.
func (p *Policy) downTolerance() float64 { return orDefaultTolerance(p.Down.Tolerance) }

func orDefaultTolerance(t float64) float64 {
	if t >= 0 {
		return t
	}
	return DefaultTolerance
}

// downPolicies are the rate policies downward.
func (p *Policy) downPolicies() []RatePolicy {
	if !p.descendsByDefault() {
		return p.Down.Policies
	}
	period := max(descentPeriod, p.Startup/4)
	return []RatePolicy{{Percent: true, Value: descent, Period: period}, {Value: 1, Period: period}}
}

func orDefault(d, fallback time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return fallback
}

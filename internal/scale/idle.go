// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/facts"
)

// idle lowers want to Policy.Idle.To once nobody has used the workload for long. An override,
// and a schedule that asks for more replicas, take precedence.
func (e *engine) idle(want int32, s *State) (int32, IdleReport) {
	p, use, without := e.p.Idle, useUnknown, ""
	if p.After <= 0 {
		s.Idle = IdleState{}
		return want, IdleReport{}
	}
	for i := range e.o.Pods {
		pod := &e.o.Pods[i]
		switch known := pod.Used.fresh(e.now, e.p.maxAge()); {
		case pod.Phase == Terminating || pod.Phase == Unschedulable:
		case known && pod.Used.Value > 0, e.added > 0:
			use = inUse
		case !known && pod.Phase == Starting: // it replaces another
		case !known:
			without = pod.Name
		case use == useUnknown:
			use = unused
		}
	}
	if without != "" && use == unused {
		use = useUnknown
	}
	in := idleInput{Use: use, Elapsed: e.sinceLast, Replicas: e.o.Replicas, Raised: e.raised, Asked: e.isAskedFor(p.To)}
	s.Idle = p.next(s.Idle, in)
	if s.Idle.Down {
		want = max(want, e.p.Min)
		e.p.Min = min(e.p.Min, p.To)
		want = e.step(RuleIdle, want, min(want, p.To), facts.Idle(p.After))
	}
	return want, p.report(s.Idle, in, without)
}

// isAskedFor reports whether something else than the load asks for more replicas than these,
// or for no change, or a signal is above its activation.
func (e *engine) isAskedFor(replicas int32) bool {
	for _, o := range []Origin{e.p.InForce.Min, e.p.InForce.Max, e.p.InForce.Up, e.p.InForce.Down} {
		if o.Rule == RuleOverride || o.Rule == RuleSchedule && e.p.Min > replicas {
			return true
		}
	}
	active, _, _ := e.activations()
	return active
}

// IdlePolicy is what happens to a workload that nobody uses. The zero IdlePolicy is nothing.
type IdlePolicy struct {
	After time.Duration // 0: nothing
	To    int32         // replicas that stay
}

// The share of IdlePolicy.After that may be unknown, and its bounds.
const (
	unknownShare = 100
	leastUnknown = time.Minute
	mostUnknown  = 10 * time.Minute
)

// warnedShare is how long before a scale-down it is announced, as a share of IdlePolicy.After.
const warnedShare = 5

// IdleUse says whether anybody uses a workload.
type IdleUse uint8

// The uses.
const (
	useUnknown IdleUse = iota // of a replica it is not known, or there is none
	unused
	inUse
)

// idleInput is what is known of a workload at one moment.
type idleInput struct {
	Use      IdleUse
	Elapsed  time.Duration // since the last decision; negative: the clock went back
	Replicas int32
	Raised   bool // the replicas have been raised since
	Asked    bool // something else than the load asks for replicas, such as an override
}

// IdleState is what is remembered of a workload.
type IdleState struct {
	// For is how long it has been seen unused, without use between. Silent is the time
	// between of which nothing is known. It does not count in For.
	For    time.Duration `json:"for,omitempty"`
	Silent time.Duration `json:"silent,omitempty"`
	// Down is set from the scale-down on until somebody uses it.
	Down bool `json:"down,omitempty"`
}

// next returns the state at the next moment. What is not known is no use and no idleness: it
// wakes no workload and removes no replica, and a while of it starts the time again.
func (p IdlePolicy) next(s IdleState, in idleInput) IdleState {
	switch {
	case p.After <= 0, in.Raised, in.Asked, in.Use == inUse:
		return IdleState{}
	case in.Elapsed < 0:
		return IdleState{Down: s.Down}
	case in.Use == useUnknown || in.Elapsed > leastUnknown:
		s.Silent += min(in.Elapsed, 2*mostUnknown)
		if s.Silent > p.mostSilent() {
			return IdleState{Down: s.Down, Silent: p.mostSilent()}
		}
		return s
	}
	if s.For == 0 {
		s.Silent = 0
	}
	s.For += in.Elapsed
	s.Down = s.Down || s.For >= p.After && in.Replicas > p.To
	return s
}

// mostSilent is how much of the time may be unknown.
func (p IdlePolicy) mostSilent() time.Duration {
	return min(max(p.After/unknownShare, leastUnknown), mostUnknown)
}

// IdleReport says how a workload is used. The zero IdleReport is for an IdlePolicy that does nothing.
type IdleReport struct {
	Use   IdleUse       `json:"use,omitempty"`
	For   time.Duration `json:"for,omitempty"`
	Left  time.Duration `json:"left,omitempty"`  // until the scale-down, if it stays unused
	Soon  bool          `json:"soon,omitempty"`  // the scale-down is to be announced
	Down  bool          `json:"down,omitempty"`  // replicas are removed, or were
	Blind bool          `json:"blind,omitempty"` // its use has not been known for a while
	// Without is a replica whose use is not known.
	Without string `json:"without,omitempty"`
}

// report returns the report about a state.
func (p IdlePolicy) report(s IdleState, in idleInput, without string) IdleReport {
	if p.After <= 0 {
		return IdleReport{}
	}
	return IdleReport{
		Use: in.Use, For: s.For, Left: max(0, p.After-s.For), Down: s.Down, Without: without,
		Soon:  !s.Down && in.Replicas > p.To && s.For >= p.After-p.After/warnedShare,
		Blind: in.Use == useUnknown && in.Replicas > 0 && s.Silent >= p.mostSilent(),
	}
}

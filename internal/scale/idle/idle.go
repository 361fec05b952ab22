// SPDX-License-Identifier: Apache-2.0

// Package idle decides when a workload that nobody uses gives up its replicas. Like package
// scale it is pure.
package idle

import "time"

// Policy is what happens to a workload that nobody uses. The zero Policy is nothing.
type Policy struct {
	After time.Duration // 0: nothing
	To    int32         // replicas that stay
}

// The share of Policy.After that may be unknown, and its bounds.
const (
	unknownShare = 100
	leastUnknown = time.Minute
	mostUnknown  = 10 * time.Minute
)

// warnedShare is how long before a scale-down it is announced, as a share of Policy.After.
const warnedShare = 5

// Use says whether anybody uses a workload.
type Use uint8

// The uses.
const (
	Unknown Use = iota // of a replica it is not known, or there is none
	Unused
	InUse
)

// Input is what is known of a workload at one moment.
type Input struct {
	Use      Use
	Elapsed  time.Duration // since the last decision; negative: the clock went back
	Replicas int32
	Raised   bool // the replicas have been raised since
	Asked    bool // something else than the load asks for replicas, such as an override
}

// State is what is remembered of a workload.
type State struct {
	// For is how long it has been seen unused, without use between. Silent is the time
	// between of which nothing is known. It does not count in For.
	For    time.Duration `json:"for,omitempty"`
	Silent time.Duration `json:"silent,omitempty"`
	// Down is set from the scale-down on until somebody uses it.
	Down bool `json:"down,omitempty"`
}

// Next returns the state at the next moment. What is not known is no use and no idleness: it
// wakes no workload and removes no replica, and a while of it starts the time again.
func (p Policy) Next(s State, in Input) State {
	switch {
	case p.After <= 0, in.Raised, in.Asked, in.Use == InUse:
		return State{}
	case in.Elapsed < 0:
		return State{Down: s.Down}
	case in.Use == Unknown || in.Elapsed > leastUnknown:
		s.Silent += min(in.Elapsed, 2*mostUnknown)
		if s.Silent > p.mostSilent() {
			return State{Down: s.Down, Silent: p.mostSilent()}
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
func (p Policy) mostSilent() time.Duration {
	return min(max(p.After/unknownShare, leastUnknown), mostUnknown)
}

// Report says how a workload is used. The zero Report is for a Policy that does nothing.
type Report struct {
	Use   Use           `json:"use,omitempty"`
	For   time.Duration `json:"for,omitempty"`
	Left  time.Duration `json:"left,omitempty"`  // until the scale-down, if it stays unused
	Soon  bool          `json:"soon,omitempty"`  // the scale-down is to be announced
	Down  bool          `json:"down,omitempty"`  // replicas are removed, or were
	Blind bool          `json:"blind,omitempty"` // its use has not been known for a while
	// Without is a replica whose use is not known.
	Without string `json:"without,omitempty"`
}

// Report returns the report about a state.
func (p Policy) Report(s State, in Input, without string) Report {
	if p.After <= 0 {
		return Report{}
	}
	return Report{
		Use: in.Use, For: s.For, Left: max(0, p.After-s.For), Down: s.Down, Without: without,
		Soon:  !s.Down && in.Replicas > p.To && s.For >= p.After-p.After/warnedShare,
		Blind: in.Use == Unknown && in.Replicas > 0 && s.Silent >= p.mostSilent(),
	}
}

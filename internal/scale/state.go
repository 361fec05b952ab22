// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/drain"
	"github.com/gpupilot/gpupilot/internal/scale/latency"
	"github.com/gpupilot/gpupilot/internal/scale/promise"
	"github.com/gpupilot/gpupilot/internal/scale/trend"
)

// State is what Decide remembers from one call to the next: facts about the
// workload, and one SignalState per signal. The zero State knows nothing: with
// it, Decide scales up at once, and scales down only after a whole
// stabilisation window.
// The size of a State is bounded. Decide never changes a State in place.
type State struct {
	Since     time.Time `json:"since"`              // time of the first decision
	LastData  time.Time `json:"lastData"`           // when a signal was last readable; zero: never
	DecidedAt time.Time `json:"decidedAt,omitzero"` // time of the last decision
	Replicas  int32     `json:"replicas"`           // spec.replicas at the last decision
	Serving   int32     `json:"serving"`            // serving replicas at the last decision
	ProbedAt  time.Time `json:"probedAt,omitzero"`  // time of the last probe
	Probed    int32     `json:"probed,omitempty"`   // serving replicas at the last probe
	ActiveAt  time.Time `json:"activeAt,omitzero"`  // when a signal was last above its activation, or not readable
	Zeroed    bool      `json:"zeroed,omitempty"`   // the last decision was 0 replicas, and others did not set them
	Wants     []Want    `json:"wants,omitempty"`    // what the load asked for, within the longer stabilisation window, thinned
	Changes   []Change  `json:"changes,omitempty"`  // within the longest period of a rate policy
	Ended     []Change  `json:"ended,omitempty"`    // replicas that no longer serve, while readings from before that count

	// UnknownSince is since when a value has been missing that the load may show in; zero: none is.
	UnknownSince time.Time `json:"unknownSince,omitzero"`
	// Added is how many starting replicas were added, and not only replaced; below 0: how many
	// are to be removed. It changed at AddedAt. GrewAt is when an added one last began to serve.
	Added   int32     `json:"added,omitempty"`
	AddedAt time.Time `json:"addedAt,omitzero"`
	GrewAt  time.Time `json:"grewAt,omitzero"`

	Rollout RolloutState `json:"rollout,omitzero"`
	Drain   drain.State  `json:"drain,omitempty"`
	Idle    IdleState    `json:"idle,omitzero"`

	// Signals has one entry for each of the policy's signals at the last decision.
	Signals []SignalState `json:"signals,omitempty"`
}

// SignalState is what is remembered about one signal. Only that signal's
// evaluation reads and replaces it. A signal that leaves the policy loses its
// state.
type SignalState struct {
	Name string `json:"name"` // Signal.Name

	// Level and Trend are zero if the signal was not readable at the last decision.
	// Quick is the average over a few seconds where Level is one over more.
	Level trend.Level `json:"level,omitzero"`
	Quick trend.Level `json:"quick,omitzero"`
	Trend trend.Trend `json:"trend,omitzero"`

	// Arrivals is learned if requests are counted, the curves if the policy limits
	// the latency. They outlast decisions at which the signal is not readable.
	Arrivals          ArrivalModel  `json:"arrivals,omitzero"`
	TokenLatency      latency.Curve `json:"tokenLatency,omitzero"`      // time between tokens
	FirstTokenLatency latency.Curve `json:"firstTokenLatency,omitzero"` // time to the first token
	// Promise is learned if the policy has an objective.
	Promise promise.State `json:"promise,omitzero"`
	Wanted  float64       `json:"-"` // replicas that its plan asked for at the last decision; 0: it did not decide
	// TokensAt is when tokens were last read; zero: never.
	TokensAt time.Time `json:"tokensAt,omitzero"`
	// LoadedAt is when requests were first in flight under an objective; zero: never.
	LoadedAt time.Time `json:"loadedAt,omitzero"`

	// SilentSince is since when the signal has had no value; zero: it has one.
	SilentSince time.Time `json:"silentSince,omitzero"`

	// SaturatedSince is when the signal reached its ceiling. It is zero while the
	// signal is below and no backlog is left.
	SaturatedSince time.Time `json:"saturatedSince,omitzero"`
	// OverloadedAt is when a server last had too many requests to keep up with
	// them; zero: never. It is kept for signals with a FirstLimit only.
	OverloadedAt time.Time `json:"overloadedAt,omitzero"`
	// HeldSince is when servers became overloaded while a rollout let fewer of them serve;
	// zero: they are not.
	HeldSince time.Time `json:"heldSince,omitzero"`
}

// signal returns the state of the signal with this name, which is at index i
// unless the policy was edited. A signal without a state gets a new one.
func (s *State) signal(i int, name string) SignalState {
	if i < len(s.Signals) && s.Signals[i].Name == name {
		return s.Signals[i]
	}
	if k := slices.IndexFunc(s.Signals, func(x SignalState) bool { return x.Name == name }); k >= 0 {
		return s.Signals[k]
	}
	return SignalState{Name: name}
}

// Truncate returns a copy of s with every time cut to a multiple of d. Digits
// below a millisecond take up a third of a state's JSON.
func (s State) Truncate(d time.Duration) State {
	s.Drain = s.Drain.Truncate(d)
	s.Wants, s.Changes, s.Ended, s.Signals = slices.Clone(s.Wants), slices.Clone(s.Changes), slices.Clone(s.Ended), slices.Clone(s.Signals)
	times := []*time.Time{&s.Since, &s.LastData, &s.DecidedAt, &s.ProbedAt, &s.ActiveAt, &s.UnknownSince, &s.AddedAt, &s.GrewAt, &s.Rollout.ReducedSince, &s.Rollout.ReducedAt}
	for i := range s.Wants {
		times = append(times, &s.Wants[i].At)
	}
	for _, changes := range [][]Change{s.Changes, s.Ended} {
		for i := range changes {
			times = append(times, &changes[i].At)
		}
	}
	for i := range s.Signals {
		x := &s.Signals[i]
		times = append(times, &x.Level.At, &x.Quick.At, &x.Trend.At, &x.Arrivals.Since, &x.Arrivals.At, &x.SaturatedSince, &x.OverloadedAt, &x.HeldSince, &x.SilentSince, &x.TokensAt, &x.LoadedAt)
	}
	for _, t := range times {
		*t = t.Truncate(d)
	}
	return s
}

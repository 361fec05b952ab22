// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/facts"
)

// Rollout says whether the workload controller is replacing pods of one version by pods of
// another one, and how many pods that run are of each.
type Rollout struct {
	InProgress bool  `json:"inProgress,omitempty"`
	Updated    int32 `json:"updated,omitempty"`  // of the newest version
	Outdated   int32 `json:"outdated,omitempty"` // of earlier ones
}

// RolloutState is what is remembered about rollouts.
type RolloutState struct {
	Version  string `json:"version,omitempty"`  // the last one that was rolled out completely; empty: not known
	Replicas int32  `json:"replicas,omitempty"` // the fewest since the rollout began; 0: none is in progress

	// ReducedSince and ReducedAt are the first and the last time at which fewer than
	// Replicas served. They are zero once the backlog of that time is processed.
	ReducedSince time.Time `json:"reducedSince,omitzero"`
	ReducedAt    time.Time `json:"reducedAt,omitzero"`
}

const (
	// rolledOut is how long replicas of a new version must serve until the rollout is
	// complete. A version that crashes may serve for seconds, again and again.
	rolledOut = time.Minute
	// rolledOutShare is the share of the replicas that must. Some are always being replaced.
	rolledOutShare = 0.8
	// backlogShare and backlogLimit bound how long replicas process the backlog of a
	// rollout: as a multiple of the time in which fewer of them served, and at all.
	// Replicas at their target have about 40 % to spare: a backlog takes up to 2.5 times
	// as long as it grew. Clients that wait for 30 s leave one of 70 s.
	backlogShare, backlogLimit = 3, 90 * time.Second
)

// observeRollout finds out whether a rollout is in progress, from the versions of the pods
// and from the version that was last rolled out completely.
//
// A rollout is neither load nor capacity: surge pods serve beside those that they replace,
// and fewer replicas than usual carry the load while others restart.
func (e *engine) observeRollout(s RolloutState) RolloutState {
	if e.o.Version == "" {
		return s
	}
	r, stable := &e.rollout, int32(0)
	for i := range e.o.Pods {
		switch p := &e.o.Pods[i]; {
		case p.Phase == Terminating || p.Version == "":
		case p.Version != e.o.Version:
			r.Outdated++
		default:
			r.Updated++
			if p.Phase == Serving && e.now.Sub(p.Since) >= rolledOut {
				stable++
			}
		}
	}
	of := e.o.Replicas
	if s.Replicas > 0 {
		of = min(of, s.Replicas)
	}
	changed := s.Version != "" && s.Version != e.o.Version
	complete := float64(stable) >= rolledOutShare*float64(of) || stable > 0 && stable == e.serving && e.starting == 0
	switch {
	case r.Outdated > 0, changed && !complete:
		r.InProgress = true
	case of > 0 && r.Updated == 0 && e.terminating(e.o) > 0: // Recreate: all stop before others start
		r.InProgress = true
	}
	if r.InProgress {
		s.Replicas = max(of, 1)
	} else {
		s.Version, s.Replicas = e.o.Version, 0
	}
	return e.observeReduced(s)
}

// observeReduced finds out whether a rollout lets fewer replicas serve than before it, or
// has done so a moment ago.
func (e *engine) observeReduced(s RolloutState) RolloutState {
	if s.ReducedAt.After(e.now) || s.ReducedSince.After(s.ReducedAt) { // the clock went back
		s.ReducedSince, s.ReducedAt = time.Time{}, time.Time{}
	}
	if e.rollout.InProgress && e.serving < s.Replicas {
		if s.ReducedAt = e.now; s.ReducedSince.IsZero() {
			s.ReducedSince = e.now
		}
		e.reduced, e.rolled = true, s.Replicas
		return s
	}
	e.rolled = s.Replicas
	if e.reduced = e.now.Sub(s.ReducedAt) < min(backlogShare*s.ReducedAt.Sub(s.ReducedSince), backlogLimit); !e.reduced {
		s.ReducedSince, s.ReducedAt = time.Time{}, time.Time{}
	}
	return s
}

// carrying is the number of replicas that carry the load. Surge pods of a rollout take the
// place of others, and are not replicas beside them.
func (v *view) carrying() int32 {
	if v.rollout.InProgress {
		return min(v.serving, v.o.Replicas)
	}
	return v.serving
}

// scaleByTotal multiplies up, a ratio of the workload's total, by its replicas. Those that are
// replaced change the ones that serve, and not the total.
func (m *measure) scaleByTotal(e *evaluation) {
	carrying := e.carrying()
	for k := range e.o.Pods {
		if e.isYoung(&e.o.Pods[k]) {
			carrying--
		}
	}
	ratio := m.up
	m.up = ratio * float64(max(carrying, 0))
	m.down = ratio * float64(e.base())
	m.most = ratio * (float64(e.carrying()) + e.ended())
}

// limitBacklog returns the highest demand that counts during a rollout, and while the
// backlog of one is left: twice as many replicas as serve now.
//
// While fewer replicas serve than before the rollout, those are overloaded, and requests
// pile up, at a constant load, too. Replicas that are starting to take over are waited for,
// while others of the old version serve for a start-up at most.
func (e *evaluation) limitBacklog(m measure) (most float64, limited bool) {
	base := float64(e.base())
	if !e.reduced {
		e.state.HeldSince = time.Time{}
		return max(base, backlogFrom*float64(e.serving)), e.rollout.InProgress
	}
	overloaded := e.isHidden(m) || m.of == 0 && (m.up > probeLimit*float64(e.serving) || !e.state.HeldSince.IsZero() && m.up > base)
	if since := e.state.HeldSince; !overloaded {
		e.state.HeldSince = time.Time{}
	} else if since.IsZero() || since.After(e.now) {
		e.state.HeldSince = e.now
	}
	isLeft := !e.rollout.InProgress || e.serving >= e.rolled // of the rollout: the backlog
	waits := e.starting > 0 && (e.rollout.Outdated == 0 || e.now.Sub(e.state.HeldSince) < max(e.p.typicalStartup(), LeastStartup))
	if overloaded && (isLeft || waits) {
		return base, true
	}
	return max(base, backlogFrom*float64(min(e.serving, e.rolled))), true
}

// limitTo limits the demand to most.
func (m measure) limitTo(most float64) measure {
	m.up, m.whole, m.most = min(m.up, most), min(m.whole, most), min(m.most, most)
	return m
}

// holdRollout keeps the number while a rollout lets no replica serve. A queue that grows
// meanwhile says nothing about the replicas that are needed once they serve, and more
// replicas of a version that does not start do not help.
func (e *engine) holdRollout(want int32) ruling {
	cur := e.o.Replicas
	if !e.rollout.InProgress || e.serving > 0 {
		return ruling{}
	}
	if e.asked, e.unknown = -1, true; want == cur {
		return ruling{}
	}
	return ruling{RuleRollout, cur, facts.Rollout{Pending: facts.Pending{Starting: e.starting, Stuck: e.unschedulable + e.expired, Wait: e.wait}}}
}

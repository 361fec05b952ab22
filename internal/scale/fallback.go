// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/facts"
)

// standIn applies the fallback of a signal without a value. Without a serving replica only
// signals with an activation, which are queries, should have one.
func (e *evaluation) standIn(out *outcome) {
	s := &e.state
	if s.SilentSince.IsZero() || s.SilentSince.After(e.now) {
		s.SilentSince = e.now
	}
	silent := e.now.Sub(s.SilentSince)
	n := e.signal.Fallback.Replicas
	switch e.signal.Fallback.Mode {
	default:
		return
	case FallbackIgnore:
		out.ignored = true
		e.step(RuleFallback, e.o.Replicas, e.o.Replicas, facts.SignalFallback{Wait: silent})
		return
	case FallbackMax:
		n = e.p.ceiling()
	case FallbackReplicas:
	}
	if silent < e.p.missingAfter() || e.serving == 0 && e.signal.Activation == nil {
		return
	}
	out.standsIn, out.demand, out.mean, out.asked = true, n, float64(n), n
	out.replicas = e.step(RuleFallback, e.o.Replicas, n, facts.SignalFallback{Wait: silent, Asks: n})
}

// isActive updates when a signal was last above its activation. Without a value it may be.
func (s *State) isActive(active bool, now time.Time) {
	if active || s.ActiveAt.IsZero() || s.ActiveAt.After(now) {
		s.ActiveAt = now
	}
}

// waitsForZero is how much longer the last replica stays; 0: no longer.
func (e *engine) waitsForZero(s *State) time.Duration {
	return max(0, e.p.Down.ToZero-e.now.Sub(s.ActiveAt))
}

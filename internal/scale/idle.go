// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"github.com/gpupilot/gpupilot/internal/scale/facts"
	"github.com/gpupilot/gpupilot/internal/scale/idle"
)

// idle lowers want to Policy.Idle.To once nobody has used the workload for long. An override,
// and a schedule that asks for more replicas, take precedence.
func (e *engine) idle(want int32, s *State) (int32, idle.Report) {
	p, use, without := e.p.Idle, idle.Unknown, ""
	if p.After <= 0 {
		s.Idle = idle.State{}
		return want, idle.Report{}
	}
	for i := range e.o.Pods {
		pod := &e.o.Pods[i]
		switch known := pod.Used.fresh(e.now, e.p.maxAge()); {
		case pod.Phase == Terminating || pod.Phase == Unschedulable:
		case known && pod.Used.Value > 0, e.added > 0:
			use = idle.InUse
		case !known && pod.Phase == Starting: // it replaces another
		case !known:
			without = pod.Name
		case use == idle.Unknown:
			use = idle.Unused
		}
	}
	if without != "" && use == idle.Unused {
		use = idle.Unknown
	}
	in := idle.Input{Use: use, Elapsed: e.sinceLast, Replicas: e.o.Replicas, Raised: e.raised, Asked: e.isAskedFor(p.To)}
	s.Idle = p.Next(s.Idle, in)
	if s.Idle.Down {
		want = max(want, e.p.Min)
		e.p.Min = min(e.p.Min, p.To)
		want = e.step(RuleIdle, want, min(want, p.To), facts.Idle(p.After))
	}
	return want, p.Report(s.Idle, in, without)
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

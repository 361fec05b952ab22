// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"testing"
	"time"
)

// What was asked of a pod counts until the cluster has had the time to show it; then the pod counts as it is.
func TestTransitions(t *testing.T) {
	now := time.Unix(1000, 0)
	ago := func(seconds int) time.Time { return now.Add(-time.Duration(seconds) * time.Second) }
	f := func(pod Pod, e Entry, from phase, as Role, to phase) {
		t.Helper()
		if at := e.phase(); at != from {
			t.Errorf("%+v is in the phase %d, want %d", e, at, from)
		}
		p := Plan{w: &Workload{Replicas: 2}, now: now}
		if role := p.begin(&pod, &e); role != as || e.phase() != to {
			t.Errorf("%+v counts as %d in the phase %d, want %d and %d", pod, role, e.phase(), as, to)
		}
	}
	serving, gated, out := Pod{Name: "a", Serving: true}, Pod{Name: "a", Gated: true}, Pod{Name: "a", Leaving: true}
	f(serving, Entry{}, unasked, Counted, unasked)
	f(out, Entry{}, unasked, Leaving, leaving) // by somebody else, or by a leader before
	f(gated, Entry{Name: "a", Leaving: true, Since: ago(1)}, leaving, Leaving, leaving)
	f(serving, Entry{Name: "a", Leaving: true, Since: ago(1)}, leaving, Counted, unasked) // the gate is not declared any more
	f(out, Entry{Name: "a", Asked: ago(9)}, recalled, Returning, recalled)
	f(serving, Entry{Name: "a", Asked: ago(9)}, recalled, Counted, recalled)
	f(serving, Entry{Name: "a", Asked: ago(10)}, recalled, Counted, unasked)
	f(out, Entry{Name: "a", Asked: ago(10)}, recalled, Leaving, leaving)
	f(out, Entry{Name: "a", Leaving: true, RemovedAt: ago(9), RemovedTo: 2}, removed, Gone, removed)
	f(out, Entry{Name: "a", Leaving: true, RemovedAt: ago(9), RemovedTo: 1}, removed, Leaving, leaving) // others were asked for since
	f(serving, Entry{Name: "a", Leaving: true, RemovedAt: ago(10), RemovedTo: 2}, removed, Counted, unasked)
	f(serving, Entry{Name: "a", RemovedAt: ago(9)}, dropped, Counted, dropped)
	f(serving, Entry{Name: "a", RemovedAt: ago(10)}, dropped, Counted, unasked)
	f(serving, Entry{Name: "a", RemovedAt: now.Add(time.Second)}, dropped, Counted, unasked) // the clock went back
}

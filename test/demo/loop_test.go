// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// simulate closes the loop without a cluster: the demo's load, its model of a
// replica and llm's policy, an agent that reads every second and a decision
// on each reading. phase is when within the second the agent reads.
func simulate(t *testing.T, s scenario, phase time.Duration) *track {
	t.Helper()
	compiled, err := policy.Compile(autoscaler())
	if err != nil {
		t.Fatal(err)
	}
	const step = 200 * time.Millisecond
	type replica struct{ created, ready time.Time }
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	pods := []replica{{begin.Add(-time.Hour), begin.Add(-time.Hour)}}
	m, state, tr := model(), scale.State{}, &track{name: llm}
	for at := time.Duration(0); at <= s.length; at += step {
		now := begin.Add(at)
		o := scale.Observation{Replicas: int32(len(pods))}
		serving := 0
		for _, p := range pods {
			if !p.ready.After(now) {
				serving++
			}
		}
		offered := s.shape.At(at)
		l := m.Step(now, offered, serving)
		tr.add(sample{
			at: at, offered: offered, need: need(offered), replicas: len(pods), serving: serving,
			util: l.Utilization, queue: l.Queue, rejected: l.Rejected,
		})
		if (at-phase)%time.Second != 0 {
			continue
		}
		for i, p := range pods {
			r := scale.Replica{Name: fmt.Sprint(i), Phase: scale.Starting, Since: p.created}
			if !p.ready.After(now) {
				r.Phase, r.Since = scale.Serving, p.ready
				r.Readings = []scale.Reading{{Value: l.Utilization, At: now, OK: true}}
			}
			o.Pods = append(o.Pods, r)
		}
		var d scale.Decision
		d, state = scale.Decide(compiled.Policy, o, state, now)
		for int32(len(pods)) < d.Replicas {
			pods = append(pods, replica{now, now.Add(startup)})
		}
		pods = pods[:d.Replicas]
	}
	return tr
}

// The load that the demo offers is one that the engine can show itself on: at
// every length and whenever the agents happen to read.
func TestEngineFollowsTheBuiltInLoad(t *testing.T) {
	for _, length := range []string{"75", "90", "120", "180", "300"} {
		s, err := newScenario(length, "", "")
		if err != nil {
			t.Fatal(err)
		}
		for phase := time.Duration(0); phase < time.Second; phase += 200 * time.Millisecond {
			got := simulate(t, s, phase).summarise()
			if bad := verdict(got, got, false, false); len(bad) > 0 {
				t.Errorf("%s s, phase %v: %q\n%+v", length, phase, bad, got)
			}
			t.Logf("%s s, phase %v: up after %v, served after %v, back after %v, peak %d, turned away %.0f",
				length, phase, got.scaleUp, got.served, got.back, got.peak, got.rejected)
		}
	}
}

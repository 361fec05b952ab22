// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/test/simnode"
)

// page is what a simulated server has counted so far.
type page struct {
	at                                  time.Time
	served, missed, firstSum, tokenSum  float64
	inFlight, utilization, kvCacheShare float64
}

// server is a replica of the simulated workload.
type server struct {
	created, ready time.Time
	now            page
	pages          []page // of the last rateWindow
}

// rateWindow is the time over which the controller computes the rates of a pod's counters; outputs and prompts are the
// tokens of a request.
const rateWindow, outputs, prompts = 15 * time.Second, 100, 500

// serve adds a server's part of a step of the load.
func (s *server) serve(x simnode.Load, of int) {
	l := latency()
	first, token := l.At(x, capacity)
	n := x.Served / float64(of)
	p := &s.now
	p.served, p.missed, p.firstSum, p.tokenSum = p.served+n, p.missed+n*l.Missed(x, capacity), p.firstSum+n*first, p.tokenSum+n*token
	p.inFlight, p.utilization, p.kvCacheShare = x.Running+x.Waiting, x.Utilization, 0.9*x.Utilization
}

// replica reads the server, as the controller reads its GPU and its page.
func (s *server) replica(name string, now time.Time, onUtilization bool) scale.Replica {
	r := scale.Replica{Name: name, Phase: scale.Starting, Since: s.created}
	if s.ready.After(now) {
		return r
	}
	p := s.now
	p.at, p.served, p.missed = now, math.Floor(p.served), math.Round(p.missed) // as the server's counters
	if s.now.served > 0 {                                                      // its histograms have the mean of all requests
		p.firstSum, p.tokenSum = p.firstSum/s.now.served*p.served, p.tokenSum/s.now.served*p.served
	}
	s.pages = append(s.pages, p)
	for s.pages[0].at.Before(now.Add(-rateWindow)) {
		s.pages = s.pages[1:]
	}
	r.Phase, r.Since = scale.Serving, s.ready
	if onUtilization {
		r.Readings = []scale.Reading{{Value: s.now.utilization, At: now, OK: true}}
		return r
	}
	r.Readings = []scale.Reading{{Value: s.now.inFlight, At: now, OK: true}, {Value: s.now.kvCacheShare, At: now, OK: true}}
	if n := len(s.pages); n > 1 {
		r.Paces, r.Arrivals = []scale.Pace{pace(&s.pages[0], &p)}, []scale.Reading{arrivals(&s.pages[n-2], &p)}
	}
	return r
}

func arrivals(a, b *page) scale.Reading {
	return scale.Reading{Value: max(0, b.served-a.served+b.inFlight-a.inFlight) / b.at.Sub(a.at).Seconds(), At: b.at, OK: true}
}

func pace(a, b *page) scale.Pace {
	seconds := b.at.Sub(a.at).Seconds()
	served := (b.served - a.served) / seconds
	p := scale.Pace{
		At: b.at, OK: true, Counted: true, EndedPerSecond: served, MissedPerSecond: (b.missed - a.missed) / seconds,
		PromptTokensPerSecond: prompts * served, OutputTokensPerSecond: outputs * served, Batch: outputs * (b.tokenSum - a.tokenSum) / seconds,
	}
	if served > 0 {
		p.TokenSeconds = p.Batch / p.OutputTokensPerSecond
		p.FirstTokensPerSecond, p.FirstTokenSeconds = served, (b.firstSum-a.firstSum)/(b.served-a.served)
	}
	return p
}

// simulate closes the loop without a cluster: the demo's load, its model of a replica and a policy of llm's, an agent that
// reads every second and a decision on each reading. phase is when within the second the agent reads, and late how much
// longer than announced a start takes.
func simulate(t *testing.T, s scenario, a *v1alpha1.GPUAutoscaler, phase, late time.Duration) *track {
	t.Helper()
	compiled, err := policy.Compile(a)
	if err != nil {
		t.Fatal(err)
	}
	onUtilization := a.Spec.Signals[0].GPU != nil
	if !onUtilization { // what the controller learns
		compiled.Policy.Startup, compiled.Policy.TypicalStartup = s.startup+late, s.startup+late
	}
	const step = 200 * time.Millisecond
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var pods []*server
	for range s.least {
		pods = append(pods, &server{created: begin.Add(-time.Hour), ready: begin.Add(-time.Hour)})
	}
	m, state, tr := model(), scale.State{}, &track{name: llm, least: int(s.least), full: s.full}
	if !onUtilization {
		tr.window = planWindow(s.startup)
	}
	var ended, missed float64
	for at := time.Duration(0); at <= s.length; at += step {
		now, serving := begin.Add(at), 0
		for _, p := range pods {
			if !p.ready.After(now) {
				serving++
			}
		}
		offered := s.shape.At(at)
		l := m.Step(now, offered, serving)
		for _, p := range pods {
			if !p.ready.After(now) {
				p.serve(l, serving)
			}
		}
		ended, missed = ended+l.Served+l.Rejected, missed+l.Rejected+l.Served*latency().Missed(l, capacity)
		tr.add(sample{
			at: at, offered: offered, need: s.need(offered), replicas: len(pods), serving: serving,
			util: l.Utilization, queue: l.Queue, rejected: l.Rejected, ended: ended, missed: missed,
		})
		if (at-phase)%time.Second != 0 {
			continue
		}
		o := scale.Observation{Replicas: int32(len(pods))}
		for i, p := range pods {
			o.Pods = append(o.Pods, p.replica(fmt.Sprint(i), now, onUtilization))
		}
		var d scale.Decision
		d, state = scale.Decide(compiled.Policy, o, state, now)
		for int32(len(pods)) < d.Replicas {
			pods = append(pods, &server{created: now, ready: now.Add(s.startup + late)})
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
			got := simulate(t, s, s.autoscaler(), phase, 0).summarise()
			if bad := verdict(got, got, int(s.least), false, false); len(bad) > 0 {
				t.Errorf("%s s, phase %v: %q\n%+v", length, phase, bad, got)
			}
			t.Logf("%s s, phase %v: up after %v, served after %v, back after %v, peak %d, turned away %.0f",
				length, phase, got.scaleUp, got.served, got.back, got.peak, got.rejected)
		}
	}
}

// Beside the usual chain the objective is kept, without a record of the load: whenever the agents read, and on a machine that
// starts pods a second late.
func TestTheObjectiveIsKept(t *testing.T) {
	for _, length := range []string{"360", "480", "900"} {
		s, err := newScenario(length, "", "")
		if err != nil {
			t.Fatal(err)
		}
		s = s.withChain("/usr/bin/prometheus")
		for phase := time.Duration(0); phase < time.Second; phase += 200 * time.Millisecond {
			got := simulate(t, s, s.promise(), phase, 2*time.Second).summarise()
			if bad := verdict(got, got, int(s.least), false, true); len(bad) > 0 {
				t.Errorf("%s s, phase %v: %q\n%+v", length, phase, bad, got)
			}
			t.Logf("%s s, phase %v: missed %s, up after %v, served after %v, back after %v, peak %d of %d, beyond the limits %v",
				length, phase, percent(got.missed), got.scaleUp, got.served, got.back, got.peak, got.need, got.overTarget)
		}
	}
}

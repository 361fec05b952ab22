// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

const object = `apiVersion: gpupilot.dev/v1alpha1
kind: GPUAutoscaler
metadata: {name: a, namespace: team}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: a}
  maxReplicas: 2
  signals:
  - preset: vllm
    slo: {objective: "99%", timeToFirstToken: 1s, interTokenLatency: 25ms}
`

// scraped has a value of every metric, of a page that is replaced after some reads.
type scraped struct {
	reads, newer int
	first        time.Time
}

func (s *scraped) PodMetric(_, _, _ string, _ time.Time, _ time.Duration) (series.Sample, bool) {
	at := s.first
	if s.reads >= s.newer {
		at = at.Add(time.Second)
	}
	s.reads++
	return series.Sample{At: at, Value: 7}, true
}

// A page that is scraped while the counters are read does not make a histogram without its upper edge, or requests that
// were not aborted: all counters are of one page.
func TestAllCountersAreOfOnePage(t *testing.T) {
	policies, err := policy.Parse("a policy", []byte(object))
	if err != nil {
		t.Fatal(err)
	}
	misses := policies[0].Compiled.Sources[0].Misses
	if misses == nil {
		t.Fatal("the policy counts no requests")
	}
	now := time.Unix(1_700_000_000, 0)
	whole := &scraped{newer: 1000, first: now}
	want, _, ok := Of(whole, misses, "team", "p", now, time.Minute)
	if !ok || whole.reads < 10 {
		t.Fatalf("%+v, %v, after %d reads", want, ok, whole.reads)
	}
	for newer := range whole.reads + 1 {
		v := &scraped{newer: newer, first: now}
		s, e, ok := Of(v, misses, "team", "p", now, time.Minute)
		if !ok || !e.First.IsEdge() || !e.Token.IsEdge() || s.Aborted != want.Aborted || s.Ended != want.Ended {
			t.Errorf("a new page after %d reads: %+v, %+v, %v; want %+v", newer, s, e, ok, want)
		}
	}
}

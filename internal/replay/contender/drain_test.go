// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"fmt"
	"testing"

	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// In a replay a policy with drain deletes no pod that has requests. The same policy without
// it does.
func TestReplayDrains(t *testing.T) {
	const seconds = 1200
	deleted := func(drain string) (busy, fell int) {
		all, err := policy.Parse("policy", fmt.Appendf(nil, `
kind: GPUAutoscaler
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}
  maxReplicas: 8
  signals: [{preset: vllm}]
  behavior: {scaleDown: {stabilizationWindowSeconds: 30, policies: [{type: Pods, value: 1, periodSeconds: 30}]}}
  %s
`, drain))
		if err != nil {
			t.Fatal(err)
		}
		e, err := NewOurs("ours", all[0].Compiled).New(&Replay{Model: &worker, Min: 1, Max: 8, Startup: 30})
		if err != nil {
			t.Fatal(err)
		}
		cfg := &service.Config{Model: worker, Startup: service.Startup{Median: 20}, Patience: 60, Seconds: seconds, Need: make([]float64, seconds/service.NeedSeconds+1), Replicas: 6}
		d := service.New(cfg, e)
		next := 0.0
		for now := 1; now <= seconds; now++ {
			var q []trace.Request
			perSecond := 2.0
			if now > 300 {
				perSecond = 0.6
			}
			for ; next < float64(now); next += 1 / perSecond {
				q = append(q, trace.Request{At: next, Prompt: 500, Output: 2000})
			}
			before := d.Replicas()
			d.Run(q, float64(now))
			if d.Replicas() < before {
				fell++
			}
			for _, p := range d.Pods() {
				if p.Phase == service.Draining {
					busy++
				}
			}
		}
		return busy, fell
	}
	if busy, fell := deleted("drain: {maxSeconds: 120}"); busy != 0 || fell == 0 {
		t.Errorf("with drain: %d seconds of deleted pods with requests, %d scale-downs", busy, fell)
	}
	if busy, fell := deleted(""); busy == 0 || fell == 0 {
		t.Errorf("without drain: %d seconds of deleted pods with requests, %d scale-downs", busy, fell)
	}
}

// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"math"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/policy"
	"github.com/gpupilot/gpupilot/internal/webui"
)

const recordedPolicy = `apiVersion: gpupilot.dev/v1alpha1
kind: GPUAutoscaler
metadata: {name: chat, namespace: llm}
spec:
  scaleTargetRef: {kind: Deployment, name: chat}
  maxReplicas: 20
  signals: [{pods: {metric: "vllm:num_requests_running"}, target: {value: "8"}}]
`

// points are ten minutes of two replicas whose load doubles.
func points() (out []webui.Point) {
	for i := range 600 {
		v := 6.0
		if i > 300 {
			v = 12
		}
		p := webui.Point{Time: time.Date(2026, 1, 1, 0, 0, i, 0, time.UTC), Replicas: 2, Serving: 2, Signals: []*float64{&v}}
		if i%10 == 3 {
			p.Signals[0] = nil
		}
		out = append(out, p)
	}
	return out
}

// The load needs the replicas that the signals asked for: 1.5, then 3.
func TestHistory(t *testing.T) {
	all, err := policy.Parse("p", []byte(recordedPolicy))
	if err != nil {
		t.Fatal(err)
	}
	h := &History{Policy: all[0].Compiled, Points: points()}
	m := preset(t, "llama-8b")
	tr, err := h.Trace(&m, 0, 0)
	if err != nil || tr.Duration != 600 {
		t.Fatalf("%+v, %v", tr, err)
	}
	for i, want := range map[int]float64{0: 1.5, 500: 3} {
		if need, ok := h.need(&h.Points[i]); !ok || math.Abs(need-want) > 1e-9 {
			t.Errorf("at %d s %g replicas, want %g", i, need, want)
		}
	}
	if _, ok := h.need(&h.Points[3]); ok {
		t.Error("a second without a value has a load")
	}
	if _, err := (&History{Policy: all[0].Compiled}).Trace(&m, 0, 0); err == nil {
		t.Error("an empty history is a trace")
	}
}

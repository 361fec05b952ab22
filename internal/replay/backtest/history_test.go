// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"math"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/view"
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
func points() (out []view.Point) {
	for i := range 600 {
		v := 6.0
		if i > 300 {
			v = 12
		}
		p := view.Point{Time: time.Date(2026, 1, 1, 0, 0, i, 0, time.UTC), Replicas: 2, Serving: 2, Signals: []*float64{&v}}
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
		if need, ok := h.need(float64(h.Points[i].Serving), h.Points[i].Signals); !ok || math.Abs(need-want) > 1e-9 {
			t.Errorf("at %d s %g replicas, want %g", i, need, want)
		}
	}
	if _, ok := h.need(2, h.Points[3].Signals); ok {
		t.Error("a second without a value has a load")
	}
	if _, err := (&History{Policy: all[0].Compiled}).Trace(&m, 0, 0); err == nil {
		t.Error("an empty history is a trace")
	}
}

// minutes are days of two replicas, whose load doubles after half of the time.
func minutes(n int) view.Minutes {
	m := view.Minutes{First: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Step: time.Minute, Metrics: []view.MinuteMetric{
		{Name: view.ReplicasMetric, Labels: map[string]string{"state": "serving"}},
		{Name: view.SignalMetric, Labels: map[string]string{"signal": "vllm:num_requests_running", "per": "replica"}},
		{Name: view.SignalMetric, Labels: map[string]string{"signal": "of an earlier policy", "per": "replica"}},
	}}
	for i := range n {
		values := []float64{2, 6, 1000}
		if i >= n/2 {
			values[1] = 12
		}
		if i == 3 {
			values[1] = math.NaN()
		}
		for j := range m.Metrics {
			m.Metrics[j].Mean = append(m.Metrics[j].Mean, values[j])
		}
	}
	return m
}

func TestDaysAreReplayedAsMinutes(t *testing.T) {
	all, err := policy.Parse("p", []byte(recordedPolicy))
	if err != nil {
		t.Fatal(err)
	}
	const n = 2 * 24 * 60
	h := &History{Name: "chat", Policy: all[0].Compiled, Points: points(), Minutes: minutes(n)}
	m := preset(t, "llama-8b")
	tr, err := h.Trace(&m, 0, 0)
	if err != nil || tr.Duration != n*60 {
		t.Fatalf("%+v, %v", tr, err)
	}
	part, err := newReplay(Config{Trace: tr, Model: m, From: 3600, Seconds: 600})
	if want := time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC); err != nil || !part.contender.Start.Equal(want) || !part.contender.HasTimes() {
		t.Errorf("a part begins at %v, want %v; %v", part.contender.Start, want, err)
	}
	r := h.recording()
	if r.rates[0].PerSecond != 1.5 || r.rates[len(r.rates)-1].PerSecond != 3 || len(r.rates) != n-1 {
		t.Errorf("%d minutes need %v to %v replicas, want 1.5 to 3", len(r.rates), r.rates[0], r.rates[len(r.rates)-1])
	}
	want := "chat: 2879 minutes from 2026-01-01 00:00 to 2026-01-02 23:59 UTC are replayed as means of one minute: bursts within a minute are lost; " +
		"1 minutes are missing and are gaps; --history 10m replays the last ten minutes second by second"
	if got := h.Note(); got != want {
		t.Errorf("the note is\n%s", got)
	}
	h.Minutes = minutes(30) // the seconds say more
	if tr, err = h.Trace(&m, 0, 0); err != nil || tr.Duration != 600 {
		t.Fatalf("%+v, %v", tr, err)
	}
	if got := h.Note(); got != "chat: 540 seconds of the controller's last decisions are replayed second by second" {
		t.Errorf("the note is\n%s", got)
	}
}

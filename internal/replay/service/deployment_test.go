// SPDX-License-Identifier: Apache-2.0

package service

import (
	"testing"

	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

// constant wants a constant number of replicas.
type constant int

func (c constant) Decide(*Deployment, int) (int, []string) { return int(c), nil }

// GPU_UTIL is near 100 with any request running. SM activity follows the batch.
func TestGPUSignals(t *testing.T) {
	read := func(perSecond float64) (util, sm, tensor float64) {
		const seconds = 300
		cfg := &Config{Model: preset(t, "llama-70b"), Startup: Startup{Median: 1}, Patience: 60, Seconds: seconds, Need: make([]float64, seconds/NeedSeconds+1), Replicas: 1}
		d := New(cfg, constant(1))
		n, next := 0.0, 0.0
		for until := 10; until <= seconds; until += 10 {
			var q []trace.Request
			for ; perSecond > 0 && next < float64(until); next += 1 / perSecond {
				q = append(q, trace.Request{At: next, Prompt: 500, Output: 100})
			}
			if forks := d.Run(q, float64(until)); len(forks) > 0 {
				t.Fatal("a deployment with one autoscaler forked")
			}
			x := d.At(until).Of(0)
			util, sm, tensor, n = util+float64(x.Values[GPUUtil]), sm+float64(x.Values[SMActive]), tensor+float64(x.Values[TensorActive]), n+1
		}
		return util / n, sm / n, tensor / n
	}
	idle, _, _ := read(0)
	util1, sm1, tensor1 := read(1)
	util6, sm6, tensor6 := read(6)
	if idle != 0 || util1 < 75 || util6 < 99 || sm1 > 60 || sm6 < 1.2*sm1 || tensor6 < 3*tensor1 {
		t.Errorf("idle %.0f; at 1/s %.0f, %.0f, %.1f; at 6/s %.0f, %.0f, %.1f", idle, util1, sm1, tensor1, util6, sm6, tensor6)
	}
}

// Autoscalers with the same decision share a deployment. It forks when they differ.
func TestFork(t *testing.T) {
	cfg := &Config{Model: preset(t, "llama-8b"), Startup: Startup{Median: 5}, Patience: 60, Seconds: 60, Need: make([]float64, 5), Replicas: 1}
	d := New(cfg, constant(1), constant(2), constant(1))
	forks := d.Run(nil, 60)
	if len(forks) != 1 || len(d.Autoscalers()) != 2 || len(forks[0].Autoscalers()) != 1 {
		t.Fatalf("%d forks; want one for the autoscaler that wants 2", len(forks))
	}
	if d.Ready() != 1 || forks[0].Ready() != 2 {
		t.Errorf("%d and %d ready pods, want 1 and 2", d.Ready(), forks[0].Ready())
	}
	if a, b := d.Outcome().GPUHours, forks[0].Outcome().GPUHours; !(a > 0 && b > a) {
		t.Errorf("%g and %g GPU-hours, want more for the fork", a, b)
	}
}

// Round robin sends each ready pod as many requests, however long they are. A request of one
// token has no time between tokens, and may count as missed.
func TestRoundRobin(t *testing.T) {
	var q []trace.Request
	for i := range 9 {
		q = append(q, trace.Request{At: float64(i), Prompt: 100, Output: float64(1 + i%3*500)})
	}
	run := func(oneTokenMisses bool) *Deployment {
		cfg := &Config{
			Model: preset(t, "llama-8b"), Startup: Startup{Median: 5}, Patience: 60, Seconds: 60, Need: make([]float64, 5), Replicas: 3,
			RoundRobin: true, OneTokenMisses: oneTokenMisses,
		}
		d := New(cfg, constant(3))
		d.Run(q, 60)
		return d
	}
	d := run(false)
	for _, p := range d.Pods() {
		if p.completed != 3 {
			t.Errorf("pod %d completed %g requests, want 3", p.ID, p.completed)
		}
	}
	if d.Busy() || d.Outcome().Violations != 0 {
		t.Errorf("busy: %v, missed %g %%", d.Busy(), d.Outcome().Violations)
	}
	if got := run(true).Outcome().Violations; got < 33 || got > 34 {
		t.Errorf("missed %g %%, want the third of one token", got)
	}
}

// What waits and what is being prefilled adds up to the prompts that have not been computed.
func TestPromptTokensInFlight(t *testing.T) {
	cfg := &Config{Model: preset(t, "llama-8b"), Startup: Startup{Median: 5}, Patience: 60, Seconds: 60, Need: make([]float64, 5), Replicas: 1}
	d := New(cfg, constant(1))
	d.Run([]trace.Request{{At: 0, Prompt: 20_000, Output: 10}, {At: 0, Prompt: 35_400, Output: 10}, {At: 0, Prompt: 1000, Output: 10}}, 1)
	x := d.At(1).Of(0)
	if x.WaitingTokens != 36_400 || x.PrefillTokens < 2200 || x.PrefillTokens > 2400 {
		t.Errorf("%g tokens wait, and %g are left to prefill; want 36,400 and 20,000 less 17,700 of a second", x.WaitingTokens, x.PrefillTokens)
	}
	d.Run(nil, 20)
	if x := d.At(20).Of(0); x.WaitingTokens != 0 || x.PrefillTokens != 0 || d.Busy() {
		t.Errorf("%g and %g tokens, busy: %v, when all is done", x.WaitingTokens, x.PrefillTokens, d.Busy())
	}
}

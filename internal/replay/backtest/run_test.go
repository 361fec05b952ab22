// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/peers"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// onRunning returns a policy on the running and the waiting requests per replica.
func onRunning(target float64) policy.Compiled {
	p := scale.Policy{
		Min: 1, Max: 100, Signals: []scale.Signal{
			{Name: "running", Target: target, Aggregate: gpu.Sum},
			{Name: "waiting", Target: 2, Aggregate: gpu.Sum},
		},
		Up: scale.Rules{Tolerance: 0.1}, Down: scale.Rules{Tolerance: 0.1, Window: 5 * time.Minute},
	}
	return policy.Compiled{Policy: p, Sources: []policy.Source{
		{Kind: policy.Pods, Terms: []policy.Term{{{Name: "vllm:num_requests_running"}}}},
		{Kind: policy.Pods, Terms: []policy.Term{{{Name: "vllm:num_requests_waiting"}}}},
	}}
}

func onGPU(f gpu.FieldID, target, ceiling float64) policy.Compiled {
	p := scale.Policy{
		Min: 1, Max: 100, Signals: []scale.Signal{{Name: "gpu", Target: target, Ceiling: ceiling, Aggregate: gpu.Mean}},
		Up: scale.Rules{Tolerance: 0.1}, Down: scale.Rules{Tolerance: 0.1, Window: 5 * time.Minute},
	}
	return policy.Compiled{Policy: p, Sources: []policy.Source{{Kind: policy.GPU, Field: f}}}
}

// steady returns a trace of counts with these rates, each for some seconds.
func steady(t testing.TB, seconds int, rates ...float64) *trace.Trace {
	t.Helper()
	var csv strings.Builder
	csv.WriteString("t_s,requests,prompt_tokens,output_tokens\n")
	for i, rate := range rates {
		for s := range seconds {
			fmt.Fprintf(&csv, "%d,%v,%v,%v\n", i*seconds+s, rate, 500*rate, 100*rate)
		}
	}
	return read(t, "steady", csv.String())
}

// constantStartup returns a start-up time without variation.
func constantStartup(median float64) service.Startup { return service.Startup{Median: median} }

var (
	directLag  = contender.Lag{Name: "direct", Delay: 1, Sync: 15}
	gpuLag     = contender.Lag{Name: "classic", Collect: 30, Scrape: 15, Sync: 15}
	gpuRuleLag = contender.Lag{Name: "classic", Collect: 30, Scrape: 15, Rule: 30, Sync: 15}
)

func preset(t *testing.T, name string) service.Model {
	t.Helper()
	m, err := service.Preset(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func run(t *testing.T, cfg Config, who ...contender.Entry) []Result {
	t.Helper()
	res, err := Run(t.Context(), cfg, who)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// With enough replicas no request misses a limit, and the GPU-hours are exact.
func TestFixedCosts(t *testing.T) {
	m := preset(t, "llama-70b")
	cfg := Config{Trace: steady(t, 1800, 10), Model: m, Startup: constantStartup(60), Seed: 3, Warmup: 600}
	cfg.Min, cfg.Max = 12, 12
	r := run(t, cfg, contender.Fixed(1))[0]
	if r.Violations != 0 || r.Requests != 10*1200 {
		t.Errorf("%d requests, %.2f %% violations; want 12000 and none", r.Requests, r.Violations)
	}
	if want := 12 * 2 * 1200.0 / 3600; r.GPUHours != want {
		t.Errorf("%g GPU-hours, want %g", r.GPUHours, want)
	}
}

// Every request ends, whatever happens to the pods.
func TestNoRequestIsLost(t *testing.T) {
	m := preset(t, "llama-8b")
	cfg := Config{Trace: steady(t, 300, 20, 2, 40, 1, 30), Model: m, Startup: service.DefaultStartup(30), Seed: 5, Min: 1, Max: 30, Warmup: 1}
	for _, who := range []contender.Entry{
		contender.NewHPA(contender.HPASettings{Kind: peers.ExternalAverage, Signal: service.Waiting, Target: 1, Window: 0, Tolerance: 0, Lag: directLag}), contender.NewKPA(2, 30, 0), contender.NewOurs("ours", onRunning(4)),
		contender.NewHPA(contender.HPASettings{Kind: peers.PodsAverage, Signal: service.GPUUtil, Target: 60, Window: 60, Tolerance: 0.1, Lag: gpuLag}),
	} {
		r, err := newReplay(cfg)
		if err != nil {
			t.Fatal(err)
		}
		deployments, err := r.deployments([]contender.Entry{who})
		if err != nil {
			t.Fatal(err)
		}
		d := deployments[0]
		for {
			q, until, ok := r.arrivals.Next()
			if !ok {
				break
			}
			d.Run(q, until)
		}
		d.Finish()
		if n := d.Outcome().Requests; n == 0 || d.Unanswered() != 0 {
			t.Errorf("%s: %d requests arrived, %d did not end", who.Name, n, d.Unanswered())
		}
	}
}

// A result depends on the seed, and not on the other entries of the replay.
func TestReplayIsIdentical(t *testing.T) {
	cfg := Config{Trace: steady(t, 600, 20, 60, 10), Model: preset(t, "llama-8b"), Startup: service.DefaultStartup(60), Seed: 1, Peak: 10}
	ours, hpa := contender.NewOurs("ours", onRunning(4)), contender.NewHPA(contender.HPASettings{Kind: peers.PodsAverage, Signal: service.Running, Target: 4, Window: 60, Tolerance: 0.1, Lag: directLag})
	a, b := run(t, cfg, ours)[0], run(t, cfg, hpa, ours, contender.NewKPA(4, 60, 0))[1]
	if a.Violations != b.Violations || a.GPUHours != b.GPUHours || a.Turns != b.Turns {
		t.Errorf("alone %.4f %% for %.3f, beside others %.4f %% for %.3f", a.Violations, a.GPUHours, b.Violations, b.GPUHours)
	}
	cfg.Seed = 2
	if c := run(t, cfg, ours)[0]; c.Violations == a.Violations && c.GPUHours == a.GPUHours {
		t.Error("another seed gives the same")
	}
}

// After a step of the load no starting pod is deleted, and the reaction time is measured.
func TestStep(t *testing.T) {
	cfg := Config{Trace: steady(t, 900, 6, 30, 30, 6, 6), Model: preset(t, "llama-8b"), Startup: constantStartup(60), Seed: 1, Min: 1, Max: 60, Warmup: 300}
	who := []contender.Entry{contender.NewOurs("ours", onRunning(4)), contender.Oracle(1, 15), contender.NewHPA(contender.HPASettings{Kind: peers.ObjectValue, Signal: service.GPUUtil, Target: 60, Window: 300, Tolerance: 0.1, Lag: gpuRuleLag})}
	res := run(t, cfg, who...)
	ours, oracle := res[0], res[1]
	if ours.Killed != 0 {
		t.Errorf("ours deleted %d starting pods", ours.Killed)
	}
	if ours.Reaction <= 0 || ours.Reaction > 30 {
		t.Errorf("ours reacted after %.0f s", ours.Reaction)
	}
	if oracle.Violations > 2 {
		t.Errorf("the oracle missed %.2f %%, ours %.2f %%", oracle.Violations, ours.Violations)
	}
	if ours.Rules["Demand"]+ours.Rules["Tolerance"] == 0 {
		t.Errorf("rules %v", ours.Rules)
	}
}

// BenchmarkReplay is a 4-hour replay of ten policies at ten replicas.
func BenchmarkReplay(b *testing.B) {
	m, _ := service.Preset("llama-8b")
	who := []contender.Entry{contender.NewOurs("ours", onRunning(4)), contender.NewOurs("gpu", onGPU(gpu.SMActive, 0.6, 1))}
	who = append(who, contender.QuickGrid().Peers(nil, contender.OnRequests)[:8]...)
	cfg := Config{Trace: steady(b, 3600, 20, 40, 30, 10), Model: m, Startup: service.DefaultStartup(120), Seed: 1, Peak: 10}
	requests := 0
	for b.Loop() {
		res, err := Run(b.Context(), cfg, who)
		if err != nil {
			b.Fatal(err)
		}
		for i := range res {
			requests += res[i].Requests
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(requests), "ns/request")
}

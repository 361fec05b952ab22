// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/peers"
	"github.com/gpupilot/gpupilot/internal/policy"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// onRunning is a policy on requests running and waiting in each replica.
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

// steady is a trace of counts: rates, each for so many seconds.
func steady(seconds int, rates ...float64) *Trace {
	t := &Trace{Name: "steady", Kind: Counts}
	for i, rate := range rates {
		for s := range seconds {
			t.windows = append(t.windows, window{
				start: float64(i*seconds + s), width: 1, rate: rate, law: uniform, prompt: 500, output: 100,
			})
		}
	}
	t.Duration = float64(len(rates) * seconds)
	return t
}

// quiet is a start-up without luck.
func quiet(median float64) Startup { return Startup{Median: median} }

func preset(t *testing.T, name string) Model {
	t.Helper()
	m, err := Preset(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func run(t *testing.T, cfg Config, who ...Contender) []Result {
	t.Helper()
	res, err := Run(t.Context(), cfg, who)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// Enough replicas fail nobody, and cost what they cost.
func TestFixedCosts(t *testing.T) {
	m := preset(t, "llama-70b")
	cfg := Config{Trace: steady(1800, 10), Model: m, Startup: quiet(60), Seed: 3, Warmup: 600}
	cfg.Min, cfg.Max = 12, 12
	r := run(t, cfg, Fixed(1))[0]
	if r.Violations != 0 || r.Requests != 10*1200 {
		t.Errorf("%d requests, %.2f %% violations; want 12000 and none", r.Requests, r.Violations)
	}
	if want := 12 * 2 * 1200.0 / 3600; r.GPUHours != want {
		t.Errorf("%g GPU-hours, want %g", r.GPUHours, want)
	}
}

// Every request ends once, whatever happens to the pods.
func TestNoRequestIsLost(t *testing.T) {
	m := preset(t, "llama-8b")
	cfg := Config{Trace: steady(300, 20, 2, 40, 1, 30), Model: m, Startup: DefaultStartup(30), Seed: 5, Min: 1, Max: 30, Warmup: 1}
	for _, who := range []Contender{
		HPA(peers.ExternalAverage, Waiting, 1, 0, 0, direct()), KPA(2, 30, 0), Ours("ours", onRunning(4)),
		HPA(peers.PodsAverage, GPUUtil, 60, 60, 0.1, classicGPU()),
	} {
		r, err := prepare(cfg)
		if err != nil {
			t.Fatal(err)
		}
		scaler, err := who.make(r)
		if err != nil {
			t.Fatal(err)
		}
		c := newCluster(&r.cfg, r.initial, r.need, who.blind(), entrant{scaler, 0})
		for {
			q, until, ok := r.arrivals.next()
			if !ok {
				break
			}
			c.run(q, until)
		}
		c.finish()
		s := &c.stats
		if s.requests == 0 || s.requests != s.ended {
			t.Errorf("%s: %d requests arrived, %d ended", who.Name, s.requests, s.ended)
		}
	}
}

// The same seed gives the same, alone or beside others; another seed does not.
func TestReplayIsIdentical(t *testing.T) {
	cfg := Config{Trace: steady(600, 20, 60, 10), Model: preset(t, "llama-8b"), Startup: DefaultStartup(60), Seed: 1, Peak: 10}
	ours, hpa := Ours("ours", onRunning(4)), HPA(peers.PodsAverage, Running, 4, 60, 0.1, direct())
	a, b := run(t, cfg, ours)[0], run(t, cfg, hpa, ours, KPA(4, 60, 0))[1]
	if a.Violations != b.Violations || a.GPUHours != b.GPUHours || a.Turns != b.Turns {
		t.Errorf("alone %.4f %% for %.3f, beside others %.4f %% for %.3f", a.Violations, a.GPUHours, b.Violations, b.GPUHours)
	}
	cfg.Seed = 2
	if c := run(t, cfg, ours)[0]; c.Violations == a.Violations && c.GPUHours == a.GPUHours {
		t.Error("another seed gives the same")
	}
}

// GPU_UTIL is near 100 with any request running, SM activity follows the batch.
func TestUtilisationAsGPUsTellIt(t *testing.T) {
	m := preset(t, "llama-70b")
	read := func(rate float64) (util, sm, tensor float64) {
		r, err := prepare(Config{Trace: steady(300, rate), Model: m, Startup: quiet(1), Seed: 1, Min: 1, Max: 1})
		if err != nil {
			t.Fatal(err)
		}
		c := newCluster(&r.cfg, 1, r.need, false, entrant{fixed{1}, 0})
		n := 0.0
		for {
			q, until, ok := r.arrivals.next()
			if !ok {
				return util / n, sm / n, tensor / n
			}
			c.run(q, until)
			x := c.at(c.now).find(0)
			util, sm, tensor, n = util+float64(x.value[GPUUtil]), sm+float64(x.value[SMActive]), tensor+float64(x.value[TensorActive]), n+1
		}
	}
	idle, _, _ := read(0)
	util1, sm1, tensor1 := read(1)
	util2, sm2, tensor2 := read(6)
	if idle != 0 || util1 < 75 || util2 < 99 || sm1 > 60 || sm2 < 1.2*sm1 || tensor2 < 3*tensor1 {
		t.Errorf("idle %.0f; at 1/s %.0f, %.0f, %.1f; at 6/s %.0f, %.0f, %.1f", idle, util1, sm1, tensor1, util2, sm2, tensor2)
	}
}

// A step of the load: nobody is killed while starting, and the reaction is seen.
func TestOursTakesAStep(t *testing.T) {
	cfg := Config{Trace: steady(900, 6, 30, 30, 6, 6), Model: preset(t, "llama-8b"), Startup: quiet(60), Seed: 1, Min: 1, Max: 60, Warmup: 300}
	who := []Contender{Ours("ours", onRunning(4)), Oracle(1, 15), HPA(peers.ObjectValue, GPUUtil, 60, 300, 0.1, classicRule())}
	res := run(t, cfg, who...)
	ours, oracle := res[0], res[1]
	if ours.Killed != 0 {
		t.Errorf("ours killed %d that were starting", ours.Killed)
	}
	if ours.Reaction <= 0 || ours.Reaction > 30 {
		t.Errorf("ours reacted after %.0f s", ours.Reaction)
	}
	if oracle.Violations > 2 {
		t.Errorf("the oracle failed %.2f %%, ours %.2f %%", oracle.Violations, ours.Violations)
	}
	if ours.Rules["Demand"]+ours.Rules["Tolerance"] == 0 {
		t.Errorf("rules %v", ours.Rules)
	}
}

func TestStartupDraws(t *testing.T) {
	m := preset(t, "llama-8b")
	s := DefaultStartup(120)
	full := []spell{{100, 500}}
	late, sum := 0, 0.0
	for id := range 4000 {
		p := s.newPod(&m, 60, 1, id, 0, full)
		if !(p.created <= p.bound && p.bound < p.runs && p.runs < p.ready) {
			t.Fatalf("pod %+v", p)
		}
		if p.bound > 0 {
			late++
			if p.bound > 100 && p.bound < 500 {
				t.Fatalf("bound at %g, while the cluster was full", p.bound)
			}
		}
		sum += p.ready - p.bound
	}
	if share := float64(late) / 4000; share < 0.07 || share > 0.13 {
		t.Errorf("%.3f of the pods waited for a node", share)
	}
	if m := sum / 4000; m < 115 || m > 135 {
		t.Errorf("starts take %.0f s on the mean", m)
	}
}

// BenchmarkReplay is a 4-hour replay of ten policies at ten replicas.
func BenchmarkReplay(b *testing.B) {
	m, _ := Preset("llama-8b")
	who := []Contender{Ours("ours", onRunning(4)), Ours("gpu", onGPU(gpu.SMActive, 0.6, 1))}
	who = append(who, QuickGrid().Peers(nil, OnRequests)[:8]...)
	cfg := Config{Trace: steady(3600, 20, 40, 30, 10), Model: m, Startup: DefaultStartup(120), Seed: 1, Peak: 10}
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

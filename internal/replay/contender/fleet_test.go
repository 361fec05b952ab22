// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"math"
	"slices"
	"testing"

	"github.com/gpupilot/gpupilot/internal/replay/service"
)

// worker has 27,000 prompt tokens/s and an iteration of 10 ms + 0.15 ms per sequence.
var worker = service.Model{
	GPUs: 1, StepBase: 0.010, StepPerSeq: 0.00015, Prefill: 27_000, Chunk: 2048, KVTokens: 478_720, MaxSeqs: 256,
	TTFTLimit: 2, ITLLimit: 0.050,
}

// server is what a ready server reports.
type server struct{ running, waiting, waitingTokens, prefillTokens, kv float64 }

// decide returns what a peer decides at a second with these ready servers, and replicas that
// start. It watched the servers for this second only.
func decide(t *testing.T, name string, second int, ready []server, starting int) int {
	t.Helper()
	var d service.Deployment
	setServers(&d, second, ready, starting)
	return newPeer(t, name)(&d, second)
}

func setServers(d *service.Deployment, second int, ready []server, starting int) {
	var pods []service.PodState
	for _, s := range ready {
		x := &service.PodReport{WaitingTokens: float32(s.waitingTokens), PrefillTokens: float32(s.prefillTokens)}
		x.Values[service.Running], x.Values[service.Waiting] = float32(s.running), float32(s.waiting)
		x.Values[service.Concurrency], x.Values[service.KVUse] = float32(s.running+s.waiting), float32(s.kv)
		pods = append(pods, service.PodState{Phase: service.Serving, Report: x})
	}
	for range starting {
		pods = append(pods, service.PodState{Phase: service.Loading})
	}
	d.SetState(second, pods, 0)
}

func newPeer(t *testing.T, name string) func(d *service.Deployment, now int) int {
	t.Helper()
	for _, e := range slices.Concat(LLMPeers(), PublishedPeers()) {
		if e.Name != name {
			continue
		}
		a, err := e.New(&Replay{Model: &worker, Min: 1, Max: 8, Startup: 30})
		if err != nil {
			t.Fatal(err)
		}
		return func(d *service.Deployment, now int) int { n, _ := a.Decide(d, now); return n }
	}
	t.Fatalf("no peer %s", name)
	return nil
}

// Each expectation is computed by hand from the rule.
func TestLLMPeersDecide(t *testing.T) {
	f := func(name string, second int, ready []server, starting, want int) {
		t.Helper()
		if got := decide(t, name, second, ready, starting); got != want {
			t.Errorf("%s with %+v and %d starting: %d replicas, want %d", name, ready, starting, got, want)
		}
	}
	f("gym-reactive", 15, []server{{waiting: 3}, {waiting: 2}}, 1, 4) // 5 > 4
	f("gym-reactive", 15, []server{{waiting: 4}}, 0, 1)
	f("gym-reactive", 15, []server{{}, {}}, 0, 1)
	f("gym-reactive", 14, []server{{}, {}}, 0, service.Unchanged)
	f("gym-keda", 15, []server{{waiting: 20}, {waiting: 3}}, 0, 5)               // ⌈23 ÷ 5⌉
	f("gym-keda", 15, []server{{waiting: 99}}, 0, 5)                             // at most 4 more
	f("llm-d-queue", 15, []server{{running: 30}, {running: 10}}, 0, 3)           // ⌈40 ÷ 16⌉
	f("llm-d-queue", 15, []server{{running: 1, waiting: 2}, {running: 1}}, 0, 2) // ⌈2 ÷ 1⌉
	// 121,500 tokens ÷ 27,000/s ÷ 1.5 s = 3, a pod at a time.
	f("llm-d-token", 15, []server{{waitingTokens: 81_000, prefillTokens: 40_500}}, 0, 2)
	f("llm-d-token", 15, []server{{waitingTokens: 40_000}}, 0, 1)                          // within the tolerance
	f("keda-triggers", 15, []server{{running: 4, kv: 0.95}, {running: 4, kv: 0.95}}, 0, 3) // ⌈1.9 ÷ 0.8⌉
	f("aibrix-apa", 10, []server{{kv: 0.8}, {kv: 0.8}}, 0, 4)                              // ⌈2 × 0.8 ÷ 0.5⌉
	f("aibrix-apa", 10, []server{{kv: 0.8}}, 1, 2)                                         // ⌈2 × 0.4 ÷ 0.5⌉: one starts
	f("aibrix-apa", 10, []server{{kv: 0.54}}, 0, 1)                                        // within the tolerance
	f("aibrix-apa", 10, []server{{kv: 0.41}, {kv: 0.41}, {kv: 0.41}}, 0, 3)                // downward it is 0.2
	f("aibrix-kpa", 10, []server{{kv: 0.8}, {kv: 0.8}}, 0, 4)                              // ⌈1.6 ÷ 0.5⌉
	f("aibrix-kpa", 10, []server{{kv: 1}}, 0, 2)
	f("production-stack-keda", 15, []server{{waiting: 20}, {waiting: 3}}, 0, 5) // ⌈23 ÷ 5⌉
	f("production-stack-hpa", 15, []server{{waiting: 1}, {waiting: 1}}, 0, 4)   // 2 replicas × 2 ÷ 1
	f("gke-queue-3", 15, []server{{waiting: 5}}, 0, 2)                          // ⌈5 ÷ 3⌉
	f("gke-batch", 15, []server{{running: 256}, {running: 256}}, 0, 3)          // ⌈512 ÷ 230⌉
	f("kserve-prometheus", 15, []server{{running: 2}, {running: 2}}, 0, 4)      // 2 replicas × 4 ÷ 2
	f("kserve-otel", 15, []server{{running: 2}, {running: 2}}, 0, 2)            // 4 ÷ 4
	f("nim-operator", 15, []server{{kv: 0.9}, {kv: 0.9}}, 0, 4)                 // ⌈2 × 0.9 ÷ 0.5⌉
	f("nim-blog", 15, []server{{kv: 0.3}}, 0, 3)                                // ⌈0.3 ÷ 0.1⌉
	f("baseten", 1, []server{{running: 2}}, 0, 3)                               // ⌈2 ÷ 0.7⌉
	f("baseten-llm", 1, []server{{running: 30}}, 0, 3)                          // ⌈30 ÷ 12.8⌉
	f("dynamo-load", 5, []server{{waitingTokens: 60_000}}, 0, 2)                // 2.2 s > 2 s
	f("dynamo-load", 5, []server{{waitingTokens: 60_000}, {}}, 0, 2)
	f("dynamo-load", 5, []server{{running: 270}}, 0, 2) // 50.5 ms > 50 ms
	f("dynamo-load", 5, []server{{waitingTokens: 60_000}}, 1, 2)
	f("dynamo-load", 5, []server{{}, {}}, 0, 1)
	f("dynamo-load", 5, []server{{running: 140}, {running: 140}}, 0, 2) // 280 on one are over 0.8 × 50 ms
}

// A setting with a window upward starts with the replicas that there are.
func TestPublishedPeersWait(t *testing.T) {
	for name, want := range map[string][2]int{
		"aws-eks":     {45, 3}, // ⌈80 ÷ 25⌉ = 4, two pods at a time
		"azure-kaito": {75, 2}, // a pod at a time
	} {
		var d service.Deployment
		peer := newPeer(t, name)
		for now := 15; now <= 300; now += 15 {
			setServers(&d, now, []server{{waiting: 80}}, 0)
			if n := peer(&d, now); n != 1 {
				if now != want[0] || n != want[1] {
					t.Errorf("%s: %d replicas at %d s, want %d at %d s", name, n, now, want[1], want[0])
				}
				break
			}
		}
	}
}

// Ray Serve's higher target must persist for 30 s, and a lower one for 600 s.
func TestRayServePersists(t *testing.T) {
	var d service.Deployment
	peer := newPeer(t, "ray-serve")
	run := func(from, to int, s server) (at, replicas int) {
		for now := from; now <= to; now++ {
			setServers(&d, now, []server{s, s}, 0)
			if n := peer(&d, now); n != 2 {
				return now, n
			}
		}
		return 0, 2
	}
	if at, n := run(1, 100, server{running: 3, waiting: 1.5}); at != 40 || n != 5 { // first report at 10 s; ⌈9 ÷ 2⌉
		t.Errorf("%d replicas at %d s, want 5 at 40 s", n, at)
	}
	if at, n := run(101, 1000, server{}); n != 1 || at < 701 {
		t.Errorf("%d replicas at %d s, want 1 after 600 s", n, at)
	}
}

// llm-d's law on latency: 1.8 s of 2 s are a stress of 0.9.
func TestLatencyStress(t *testing.T) {
	s := &latencyStress{}
	f := &fleet{now: 15, model: &worker, replicas: 2}
	for range 2 {
		f.servers = append(f.servers, &service.PodReport{Serving: true, FirstTokenSeconds: 1.8, FirstTokensPerSecond: 3})
	}
	s.watch(f)
	if got := s.demand(f); got != 4 { // 2 + ⌈2 × (0.9 ÷ 0.55 − 1)⌉
		t.Errorf("demand %g, want 4", got)
	}
	f.servers = f.servers[:1]
	if got := s.demand(f); got != 2 { // half of them are ready
		t.Errorf("demand %g, want 2", got)
	}
	f.servers = append(f.servers, f.servers[0])
	s.stress, s.evaluations = [3]float64{0.1}, 1
	if got := s.demand(f); got != 1 { // 2 − ⌊2 × (1 − 0.1 ÷ 0.4)⌋
		t.Errorf("demand %g, want 1", got)
	}
}

// An engine completes 3.27 requests/s of 8,100 and 40 tokens: 6 sequences with 1,215 prompt
// tokens take 45.9 ms.
func TestPlannerPredicts(t *testing.T) {
	p := &planner{predict: true, prompt: 8100, output: 40}
	if got := p.bestRate(&worker); math.Abs(got-3.268) > 0.001 {
		t.Errorf("%g requests/s, want 3.268", got)
	}
	f := &fleet{now: 180, measured: 180, model: &worker, replicas: 1, arrivals: 10}
	for f.now = 1; f.now <= 180; f.now++ {
		p.watch(f)
	}
	f.now = 180
	if got := p.decide(f); got != 4 { // ⌈10 ÷ 3.268⌉
		t.Errorf("%d replicas, want 4", got)
	}
}

// A worker serves 3.19 requests/s of 8,100 and 40 tokens. 400 requests wait: 30 s of one
// worker and 25 s of n clear 95.7 + 79.7 n.
func TestMPCClearsABacklog(t *testing.T) {
	c := &mpc{min: 1, max: 8, startup: 30, bias: 1, model: &worker, prompt: 8100, output: 40}
	f := &fleet{now: 60, model: &worker, replicas: 1, waiting: 400, servers: make([]*service.PodReport, 1)}
	if got := c.workerRate(); math.Abs(got-3.19) > 0.01 {
		t.Errorf("%g requests/s, want 3.19", got)
	}
	if got := c.backlogFloor(f, make([]float64, c.steps())); got != 4 {
		t.Errorf("%d replicas, want 4", got)
	}
}

// 3 requests/s follow slowly, a step to 9 at once: 135 in 15 s instead of 45.
func TestArrivalForecastResets(t *testing.T) {
	var a arrivalForecast
	add := func(rate float64) float64 {
		for range binPolls {
			a.add(rate*mpcInterval, 30)
		}
		return a.level
	}
	add(3)
	if got := add(4); got != 3.5 { // 15 s of 30 s
		t.Errorf("level %g after 3 and 4, want 3.5", got)
	}
	if got := add(9); got != 9 {
		t.Errorf("level %g after a step, want 9", got)
	}
}

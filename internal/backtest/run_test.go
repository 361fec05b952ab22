// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
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
		{Kind: policy.Pods, Metric: "vllm:num_requests_running"}, {Kind: policy.Pods, Metric: "vllm:num_requests_waiting"},
	}}
}

func onGPU(f gpu.FieldID, target, ceiling float64) policy.Compiled {
	p := scale.Policy{
		Min: 1, Max: 100, Signals: []scale.Signal{{Name: "gpu", Target: target, Ceiling: ceiling, Aggregate: gpu.Mean}},
		Up: scale.Rules{Tolerance: 0.1}, Down: scale.Rules{Tolerance: 0.1, Window: 5 * time.Minute},
	}
	return policy.Compiled{Policy: p, Sources: []policy.Source{{Kind: policy.GPU, Field: f}}}
}

// TestLook prints one replay of a recorded trace: GPUPILOT_TRACES names the
// directory, GPUPILOT_LOOK the file.
func TestLook(t *testing.T) {
	dir, file := os.Getenv("GPUPILOT_TRACES"), os.Getenv("GPUPILOT_LOOK")
	if dir == "" || file == "" {
		t.Skip("no GPUPILOT_TRACES, GPUPILOT_LOOK")
	}
	tr, err := Open(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	name := os.Getenv("GPUPILOT_MODEL")
	if name == "" {
		name = "llama-8b"
	}
	m, err := Preset(name)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Trace: tr, Model: m, Seed: 1, Peak: 20, Startup: DefaultStartup(120)}
	cfg.Stretch(4)
	who := []Contender{Oracle(1), Oracle(0.8), Oracle(0.6), Fixed(1)}
	for _, target := range []float64{2, 4, 8, 16} {
		who = append(who, Ours("ours "+string(rune('0'+int(target)%10)), onRunning(target)),
			HPA(ExternalAverage, Concurrency, target, 300, 0.1, classicPods()), HPA(PodsAverage, Running, target, 300, 0.1, direct()), KPA(target, 60, 300))
	}
	for _, target := range []float64{30, 50, 70} {
		who = append(who, Ours("ours sm", onGPU(gpu.SMActive, target/100, 1)),
			HPA(PodsAverage, SMActive, target, 300, 0.1, direct()))
	}
	start := time.Now()
	res, err := Run(t.Context(), cfg, who)
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	t.Logf("%d requests, %d hopeless, peak need %.1f, %v for %d", res[0].Requests, res[0].Hopeless, res[0].PeakNeed, took, len(who))
	_ = WriteResults(os.Stdout, res, 0)
}

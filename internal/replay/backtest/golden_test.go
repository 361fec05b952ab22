// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"flag"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

var update = flag.Bool("update", false, "write testdata/replay.golden")

// wave returns half an hour of load that rises and falls, in bursts.
func wave(t testing.TB) *trace.Trace {
	t.Helper()
	var csv strings.Builder
	csv.WriteString("client,t_s,rate_rps,iat_dist,p1,prompt_tokens_mean,output_tokens_mean\n")
	for i := range 60 {
		rate := 3 + 2*math.Sin(float64(i)/7) + float64(i%13)/4
		fmt.Fprintf(&csv, "1,%d,%v,Gamma,0.7,1155,211\n", 30*i, rate)
	}
	return read(t, "wave", csv.String())
}

func read(t testing.TB, name, csv string) *trace.Trace {
	t.Helper()
	out, err := trace.Read(name, strings.NewReader(csv))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// follower is a simple autoscaler for the golden test. It follows the last sample of one
// signal, up at once and down by one replica per minute, oldest pod first.
type follower struct {
	signal service.Signal
	target float64
}

// Decide implements service.Autoscaler.
func (f follower) Decide(d *service.Deployment, now int) (int, []string) {
	sum, n := d.Total(d.At(now-1), f.signal, 10)
	if now%10 != 0 || n == 0 {
		return service.Unchanged, nil
	}
	replicas := min(max(1, contender.Ceil(sum/f.target)), 30)
	if replicas < d.Replicas() {
		if now%60 != 0 {
			return service.Unchanged, nil
		}
		return d.Replicas() - 1, []string{d.Pods()[0].Name}
	}
	return replicas, nil
}

func followers() (out []contender.Entry) {
	for _, x := range []struct {
		signal  service.Signal
		targets []float64
	}{
		{service.Running, []float64{4, 16, 60}},
		{service.Waiting, []float64{2}},
		{service.Concurrency, []float64{10}},
		{service.KVUse, []float64{0.02}},
		{service.Served, []float64{3}},
		{service.GPUUtil, []float64{60, 90}},
		{service.SMActive, []float64{30, 50}},
		{service.TensorActive, []float64{3, 10}},
	} {
		class := contender.OnRequests
		if x.signal.OfGPU() || x.signal == service.Served {
			class = contender.OnGPU
		}
		for _, target := range x.targets {
			out = append(out, contender.Entry{
				Name: fmt.Sprintf("%v=%g", x.signal, target), Class: class,
				New: func(*contender.Replay) (service.Autoscaler, error) { return follower{x.signal, target}, nil },
			})
		}
	}
	return out
}

// Results stay the same to the last digit, so that the simulation can be optimised and
// cached results stay comparable.
func TestReplaysAreUnchanged(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("other architectures fuse multiplications and additions")
	}
	var got strings.Builder
	for _, model := range []string{"llama-8b", "llama-70b"} {
		who := append(followers(), contender.Oracle(1, 15), contender.Reactive(0.8, 300), contender.Fixed(0.6))
		cfg := Config{Trace: wave(t), Model: preset(t, model), Startup: service.DefaultStartup(60), Seed: 3, Peak: 6}
		cfg.Startup.ShortagesPerDay = 100 // so that half an hour has at least one
		for _, r := range run(t, cfg, who...) {
			violated := 0
			for _, p := range r.Minutes {
				violated += p.Violations
			}
			fmt.Fprintf(&got, "%s %s: %d %d %v %v %v %d %v %v %v %v %d %d %v %d\n", model, r.Name, r.Requests, r.Infeasible, r.Violations, r.Late, r.Slow,
				violated, r.GPUHours, r.Under, r.Over, r.Turns, r.Killed, r.Cascades, r.Reaction, r.ReplicasMax)
		}
	}
	const path = "testdata/replay.golden"
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, now := strings.Split(string(b), "\n"), strings.Split(got.String(), "\n")
	if len(want) != len(now) {
		t.Fatalf("%d results, %d before", len(now), len(want))
	}
	for i := range now {
		if now[i] != want[i] {
			t.Errorf("now    %s\nbefore %s", now[i], want[i])
		}
	}
}

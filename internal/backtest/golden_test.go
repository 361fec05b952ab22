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
)

var update = flag.Bool("update", false, "write testdata/replay.golden anew")

// wave is half an hour of load that rises and falls, in bursts.
func wave() *Trace {
	t := &Trace{Name: "wave", Kind: Windows, Duration: 1800}
	for i := range 60 {
		rate := 3 + 2*math.Sin(float64(i)/7) + float64(i%13)/4
		t.windows = append(t.windows, window{
			start: float64(30 * i), width: 30, rate: rate, law: gammaLaw, shape: 0.7, prompt: 1155, output: 211,
		})
	}
	return t
}

// chaser is an autoscaler of a kind that nobody would want: it follows one
// signal's last sample, up at once and down by one a minute, youngest last.
type chaser struct {
	signal Signal
	target float64
}

func (h chaser) decide(c *cluster, now int) (int, []string) {
	sum, n := c.total(c.at(now-1), h.signal, 10)
	if now%10 != 0 || n == 0 {
		return -1, nil
	}
	want := min(max(1, ceil(sum/h.target)), 30)
	if want < c.spec {
		if now%60 != 0 {
			return -1, nil
		}
		return c.spec - 1, []string{c.pods[0].name}
	}
	return want, nil
}

func chasers() (out []Contender) {
	for _, x := range []struct {
		signal  Signal
		targets []float64
	}{
		{Running, []float64{4, 16, 60}},
		{Waiting, []float64{2}},
		{Concurrency, []float64{10}},
		{KVUse, []float64{0.02}},
		{Served, []float64{3}},
		{GPUUtil, []float64{60, 90}},
		{SMActive, []float64{30, 50}},
		{TensorActive, []float64{3, 10}},
	} {
		class := OnRequests
		if x.signal.ofGPU() || x.signal == Served {
			class = OnGPU
		}
		for _, target := range x.targets {
			out = append(out, Contender{
				Name: fmt.Sprintf("%v=%g", x.signal, target), Class: class,
				make: func(*replay) (autoscaler, error) { return chaser{x.signal, target}, nil },
			})
		}
	}
	return out
}

// TestReplaysAreAsBefore holds the simulation to the last digit of what it once
// came to: it may be made faster, and results that were kept stay comparable.
func TestReplaysAreAsBefore(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("other processors round a multiplication and an addition at once")
	}
	var got strings.Builder
	for _, model := range []string{"llama-8b", "llama-70b"} {
		who := append(chasers(), Oracle(1, 15), Reactive(0.8, 300), Fixed(0.6))
		cfg := Config{Trace: wave(), Model: preset(t, model), Startup: DefaultStartup(60), Seed: 3, Peak: 6}
		cfg.Startup.Spells = 100 // a day, so that there is one
		for _, r := range run(t, cfg, who...) {
			violated := 0
			for _, p := range r.Points {
				violated += p.Violations
			}
			fmt.Fprintf(&got, "%s %s: %d %d %v %v %v %d %v %v %v %v %d %d %v %d\n", model, r.Name, r.Requests, r.Hopeless, r.Violations, r.Late, r.Slow,
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

// SPDX-License-Identifier: Apache-2.0

package arena

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/replay/backtest"
	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

// Worker returns the model of the arena's worker: gpt-oss-120b on one H200 with vLLM. Planner
// Gym takes its times from a database that is not public. Three constants were fitted to its
// published results of static 4, reactive and KEDA: StepBase, StepPerSeq and Prefill. Its
// cache has 29,920 blocks; that they are of 16 tokens, and that a worker runs 256 sequences,
// are vLLM's defaults.
func Worker() service.Model {
	return service.Model{
		Name: "gpt-oss-120b", GPUs: 1, GPU: "h200", Source: "fitted to three published rows of Planner Gym",
		StepBase: 10e-3, StepPerSeq: 0.15e-3, Prefill: 27_000, Chunk: 2048, KVTokens: 29_920 * 16, MaxSeqs: 256,
		FlopsShare: 0.45, DecodeShare: 0.45 / 27_000, // an assumption, as that of the presets; no contender reads it
		TTFTLimit: 2, ITLLimit: 0.050,
	}
}

// The bounds of the published match, and the workers of its static fleet.
const (
	minWorkers, maxWorkers = 1, 8
	staticWorkers          = 4
)

// Rivals returns the published contenders whose rules are public, larger static fleets, and
// other autoscalers for LLM servers.
func Rivals() []contender.Entry {
	static := []contender.Entry{contender.Static(staticWorkers), contender.Static(6), contender.Static(maxWorkers)}
	return append(static, contender.LLMPeers()...)
}

// DefaultPolicies returns GPUPilot's default policies on requests, with the arena's limits.
func DefaultPolicies() ([]contender.Entry, error) {
	_, ours, err := backtest.DefaultPolicies()
	return slices.DeleteFunc(ours, func(e contender.Entry) bool { return e.Class != contender.OnRequests }), err
}

// Setting is how a match is played.
type Setting struct {
	Startup float64 `json:"startupSeconds"` // of each worker, exactly
	Scrape  int     `json:"scrapeSeconds"`  // interval of Prometheus; 0: no lag
	Stretch float64 `json:"stretch"`        // length of the loads, as a multiple of the published ones
	First   int     `json:"firstWorkers"`   // at the start, of the contenders that scale
}

// Published is the setting of Planner Gym.
func Published() Setting { return Setting{Startup: 30, Stretch: 1, First: minWorkers} }

// Settings returns the published setting, and unless stretch is 0 those of the extended match:
// the published loads, and each start with each interval of Prometheus on longer ones. There
// those who scale start with the static fleet's workers: from one, a match of three minutes
// measures little but the first starts. Errors name the flags of gpupilot arena.
func Settings(startups, scrapes []time.Duration, stretch float64) ([]Setting, error) {
	if !(stretch == 0 || stretch >= 1 && stretch <= maxStretch) {
		return nil, fmt.Errorf("--stretch %v: want 1 to %d, or 0 for the published match only", stretch, maxStretch)
	}
	out := []Setting{Published()}
	if stretch > 0 {
		out = append(out, Setting{Startup: Published().Startup, Stretch: 1, First: staticWorkers})
	}
	for _, startup := range startups {
		for _, scrape := range scrapes {
			if startup < time.Second || startup > time.Hour {
				return nil, fmt.Errorf("--startup %v: want 1s to 1h", startup)
			}
			if scrape < 0 || scrape > time.Minute {
				return nil, fmt.Errorf("--scrape %v: want 0s to 1m", scrape)
			}
			if stretch > 0 {
				out = append(out, Setting{Startup: startup.Seconds(), Scrape: int(scrape.Seconds()), Stretch: stretch, First: staticWorkers})
			}
		}
	}
	return out, nil
}

// maxStretch is a load of a day.
const maxStretch = 480

// Match replays loads against contenders.
type Match struct {
	Loads      []Load
	Contenders []contender.Entry
	Seeds      int
	Workers    int // concurrent replays; at least 1
}

// Score is the result of a replay, or a mean.
type Score struct {
	GoodPerGPUSecond float64 `json:"goodPerGPUSecond"` // the published metric
	GoodRate         float64 `json:"goodRate"`         // share of all requests within both limits
	GPUs             float64 `json:"gpus"`             // mean until the last answer, of starting, ready and draining workers
}

func (s *Score) add(x Score, weight float64) {
	s.GoodPerGPUSecond += weight * x.GoodPerGPUSecond
	s.GoodRate += weight * x.GoodRate
	s.GPUs += weight * x.GPUs
}

// Play plays a match: all loads, seeds and contenders.
func (m *Match) Play(ctx context.Context, set Setting) (*Table, error) {
	scores := make([][]Score, len(m.Contenders)) // by contender and load: means over the seeds
	for i := range scores {
		scores[i] = make([]Score, len(m.Loads))
	}
	replays := len(m.Loads) * m.Seeds
	results, errs := make([][]Score, replays), make([]error, replays)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range max(1, min(m.Workers, replays)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < replays; i = int(next.Add(1)) - 1 {
				results[i], errs[i] = m.replay(ctx, &m.Loads[i/m.Seeds], uint32(i%m.Seeds), set)
			}
		})
	}
	workers.Wait()
	for i := range results {
		if errs[i] != nil {
			return nil, errs[i]
		}
		for k, x := range results[i] {
			scores[k][i/m.Seeds].add(x, 1/float64(m.Seeds))
		}
	}
	return m.table(set, scores), nil
}

// replay replays one load and seed against all contenders.
func (m *Match) replay(ctx context.Context, l *Load, seed uint32, set Setting) (out []Score, err error) {
	requests, seconds := l.requests(seed, set.Stretch)
	for i := range m.Contenders {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		x, err := play(requests, seconds, set, seed, &m.Contenders[i])
		if err != nil {
			return nil, fmt.Errorf("%s on %s: %w", m.Contenders[i].Name, l.Name, err)
		}
		out = append(out, x)
	}
	return out, nil
}

// longestDrain bounds the time from the end of a load until its last answer, in seconds.
const longestDrain = 24 * 3600

// play replays requests against one contender, until the last answer.
func play(requests []trace.Request, seconds float64, set Setting, seed uint32, e *contender.Entry) (Score, error) {
	cfg := service.Config{
		Model: Worker(), Startup: service.Startup{Median: set.Startup}, Patience: math.Inf(1), Seconds: seconds + longestDrain,
		Seed: uint64(seed), Need: []float64{0}, Replicas: set.First, RoundRobin: true, OneTokenMisses: true, GaugesOnly: e.GaugesOnly(),
	}
	a, err := e.New(&contender.Replay{
		Model: &cfg.Model, Seed: uint64(seed), Min: minWorkers, Max: maxWorkers, Scaled: true, Need: cfg.Need,
		Scrape: set.Scrape, Startup: set.Startup,
	})
	if err != nil {
		return Score{}, err
	}
	if e.Family == contender.FixedReplicas { // a static fleet starts with its own workers
		cfg.Replicas, _ = a.Decide(nil, 0)
	}
	d := service.New(&cfg, a)
	now := 0.0
	for rest := requests; now < seconds || d.Busy(); {
		if now >= cfg.Seconds {
			return Score{}, fmt.Errorf("requests without an answer after %g s", now)
		}
		now++
		n := 0
		for n < len(rest) && rest[n].At < now {
			n++
		}
		d.Run(rest[:n], now)
		rest = rest[n:]
	}
	o := d.Outcome()
	good, gpuSeconds := float64(o.Requests)*(1-o.Violations/100), o.GPUHours*3600
	return Score{GoodPerGPUSecond: good / gpuSeconds, GoodRate: good / float64(len(requests)), GPUs: gpuSeconds / now}, nil
}

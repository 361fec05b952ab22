// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

// Study describes replays of several traces, models, start-up times and seeds. GPUPilot's
// policies and the peers replay the same load.
type Study struct {
	Traces     []*trace.Trace
	Models     []service.Model
	Startups   []float64 // medians, in seconds
	Low        float64   // peak of the load in replicas: from Low with the first seed to
	High       float64   // High with the last or only one, by equal factors; 0: not scaled
	Seeds      int
	Hours      float64 // part of each trace, chosen by the seed; 0: all
	Ours       []contender.Entry
	Peers      []contender.Entry
	References []contender.Entry                    // such as oracles
	Patience   float64                              // seconds; 0: DefaultPatience
	Min, Max   int                                  // replicas; Max 0: three times the load's peak
	Startup    func(median float64) service.Startup // nil: service.DefaultStartup
	// KeepMinutes keeps the minutes of the first seed: those of our policies, and of the
	// nearest points on the front.
	KeepMinutes bool

	Workers int // concurrent cases; at least 1

	// LoadCached returns the baseline of a case from a cache, and StoreCached adds one.
	// Both may be nil. They and Progress are called concurrently.
	LoadCached  func(key string) (Baseline, bool)
	StoreCached func(key string, b Baseline)
	// Progress is called after each case. It may be nil.
	Progress func(done, of int, c *Case)

	fingerprint string                         // of the simulation, for cache keys
	capacities  map[string]*service.Capacities // by model
}

// Case is one replay with its results.
type Case struct {
	Trace   string  `json:"trace"`
	Model   string  `json:"model"`
	Startup float64 `json:"startupSeconds"` // median
	Seed    uint64  `json:"seed"`
	Peak    float64 `json:"peakReplicas"` // peak of the scaled load; 0: not scaled
	Scale   float64 `json:"scale"`        // requests per recorded request; 1: not scaled
	Hours   float64 `json:"hours"`
	Counted float64 `json:"countedHours"` // of Hours, without the warm-up; 0: all

	Ours       []Result `json:"ours"`
	References []Result `json:"also,omitempty"`
	Peers      []Point  `json:"peers"`
	Shown      []Result `json:"shown,omitempty"` // peers with their minutes
}

// Replays returns the number of cases.
func (s *Study) Replays() int { return len(s.Traces) * len(s.Models) * len(s.Startups) * s.Seeds }

// job is a case that is not replayed yet.
type job struct {
	trace   *trace.Trace
	model   service.Model
	startup float64
	seed    int // from 0
}

func (s *Study) jobs() (out []job) {
	for _, t := range s.Traces {
		for _, m := range s.Models {
			for _, startup := range s.Startups {
				for seed := range s.Seeds {
					out = append(out, job{t, m, startup, seed})
				}
			}
		}
	}
	return out
}

// Run replays all cases. They are in the order of trace, model, start-up and seed. If ctx
// ends early, Run returns the complete cases and the error of ctx.
func (s *Study) Run(ctx context.Context) ([]Case, error) {
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	jobs := s.jobs()
	cases, errs := make([]Case, len(jobs)), make([]error, len(jobs))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var next, done atomic.Int64
	var workers sync.WaitGroup
	for range max(1, min(s.Workers, len(jobs))) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(jobs); i = int(next.Add(1)) - 1 {
				c, err := s.runCase(ctx, &jobs[i])
				if err != nil {
					errs[i] = err
					cancel()
					return
				}
				cases[i] = c
				if n := int(done.Add(1)); s.Progress != nil {
					s.Progress(n, len(jobs), &cases[i])
				}
			}
		})
	}
	workers.Wait()
	for _, err := range errs { // the first failure; workers that were cancelled by it follow
		if err != nil && !errors.Is(err, context.Canceled) {
			return nil, err
		}
	}
	cases = slices.DeleteFunc(cases, func(c Case) bool { return c.Seed == 0 }) // not complete
	return cases, ctx.Err()
}

// prepare computes what the cases share.
func (s *Study) prepare(ctx context.Context) (err error) {
	s.capacities = map[string]*service.Capacities{}
	for _, m := range s.Models {
		s.capacities[m.Name] = service.NewCapacities(&m)
	}
	if s.LoadCached != nil || s.StoreCached != nil {
		s.fingerprint, err = s.probe(ctx)
	}
	return err
}

// peak returns the load's peak for a seed.
func (s *Study) peak(seed int) float64 {
	if s.Seeds < 2 || s.Low <= 0 {
		return s.High
	}
	return s.Low * math.Pow(s.High/s.Low, float64(seed)/float64(s.Seeds-1))
}

// pastSeconds is how much of the load before a replay our policies know: what the
// controller keeps of it.
const pastSeconds = 26 * 3600

func (s *Study) config(j *job) Config {
	cfg := Config{
		Trace: j.trace, Model: j.model, Startup: service.DefaultStartup(j.startup), Seed: uint64(j.seed) + 1, Peak: s.peak(j.seed),
		Past: pastSeconds, Patience: s.Patience, Min: s.Min, Max: s.Max, Capacities: s.capacities[j.model.Name],
	}
	if s.Startup != nil {
		cfg.Startup = s.Startup(j.startup)
	}
	cfg.Stretch(s.Hours)
	return cfg
}

func (s *Study) runCase(ctx context.Context, j *job) (Case, error) {
	cfg := s.config(j)
	c := Case{Trace: j.trace.Name, Model: j.model.Name, Startup: j.startup, Seed: cfg.Seed, Peak: cfg.Peak, Hours: cfg.Seconds / 3600, Counted: cfg.CountedHours()}
	key := s.key(&cfg)
	var baseline Baseline
	cached := false
	if s.LoadCached != nil {
		baseline, cached = s.LoadCached(key)
	}
	entries := s.Ours
	if !cached {
		entries = slices.Concat(s.Ours, s.References, s.Peers)
	}
	results, err := Run(ctx, cfg, entries)
	if err != nil {
		return c, err
	}
	ours, others := results[:len(s.Ours)], results[len(s.Ours):]
	if !cached {
		baseline = newBaseline(others[:len(s.References)], others[len(s.References):])
		if s.StoreCached != nil {
			s.StoreCached(key, baseline)
		}
	}
	c.Ours, c.References, c.Peers = ours, baseline.References, baseline.Peers
	if len(ours) > 0 {
		c.Scale = ours[0].Scale
	}
	if !s.KeepMinutes || j.seed > 0 {
		dropMinutes(c.Ours)
		return c, nil
	}
	return c, s.replayNearest(ctx, cfg, &c)
}

func dropMinutes(r []Result) {
	for i := range r {
		r[i].Minutes = nil
	}
}

// replayNearest replays the points on the front that are nearest to ours, with their
// minutes. Baselines have no minutes.
func (s *Study) replayNearest(ctx context.Context, cfg Config, c *Case) error {
	var nearest []contender.Entry
	for _, v := range s.Judge(c) {
		i := slices.IndexFunc(s.Peers, func(p contender.Entry) bool { return p.Name == v.Nearest })
		if i >= 0 && !slices.ContainsFunc(nearest, func(p contender.Entry) bool { return p.Name == v.Nearest }) {
			nearest = append(nearest, s.Peers[i])
		}
	}
	if len(nearest) == 0 {
		return nil
	}
	var err error
	c.Shown, err = Run(ctx, cfg, nearest)
	return err
}

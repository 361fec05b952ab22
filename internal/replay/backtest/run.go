// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
	"github.com/gpupilot/gpupilot/internal/scale/promise"
)

// Config is one replay: a part of a trace, scaled, on a service.
type Config struct {
	Trace    *trace.Trace
	Model    service.Model
	From     float64 // seconds of the trace
	Seconds  float64 // duration; 0: to the end of the trace
	Peak     float64 // replicas that the 99th percentile of the recorded rates needs; 0: not scaled
	Startup  service.Startup
	Min, Max int     // replicas; Max 0: three times the peak
	Patience float64 // seconds after which a client without a first token gives up; 0: DefaultPatience
	Seed     uint64

	// Rest is called between short pieces of work, and may wait; nil: nothing is called.
	Rest func()

	// Past is how much of the load before From an autoscaler may know, in seconds.
	Past float64

	// Warmup is the time at the start that is not counted, in seconds, while windows fill.
	// 0: ten minutes, or a fifth of a short replay.
	Warmup float64

	Capacities *service.Capacities // of the model; nil: to be measured
}

// DefaultPatience is how long a client waits for its first token, in seconds.
const DefaultPatience = 60

// Stretch chooses a part of the trace by the seed, of this many hours. It chooses the whole
// trace if it is shorter, or for 0 hours.
func (cfg *Config) Stretch(hours float64) {
	cfg.From, cfg.Seconds = 0, math.Floor(cfg.Trace.Duration)
	if s := math.Floor(hours * 3600); s > 0 && s < cfg.Seconds {
		rng := rand.New(rand.NewPCG(cfg.Seed, 0x57e7c4))
		cfg.From = math.Floor(rng.Float64() * (cfg.Seconds - s))
		cfg.Seconds = s
	}
}

// CountedHours is the duration without the warm-up, to which GPU-hours and requests belong.
func (cfg *Config) CountedHours() float64 { return (cfg.Seconds - cfg.warmup()) / 3600 }

func (cfg *Config) warmup() float64 {
	if cfg.Warmup > 0 {
		return cfg.Warmup
	}
	return math.Floor(min(600, cfg.Seconds/5))
}

// complete checks the duration and sets the defaults that do not depend on the load.
func (cfg *Config) complete() error {
	if rest := math.Floor(cfg.Trace.Duration - cfg.From); cfg.Seconds <= 0 || cfg.Seconds > rest {
		cfg.Seconds = rest
	}
	if cfg.Seconds < 60 {
		return fmt.Errorf("%s: %g s are too short for a replay: want at least 60", cfg.Trace.Name, cfg.Seconds)
	}
	if cfg.Patience <= 0 {
		cfg.Patience = DefaultPatience
	}
	cfg.Warmup = cfg.warmup()
	if cfg.Rest == nil {
		cfg.Rest = func() {}
	}
	if cfg.Capacities == nil {
		cfg.Capacities = service.NewCapacities(&cfg.Model)
	}
	cfg.Min = max(1, cfg.Min)
	if cfg.Max <= 0 {
		cfg.Max = max(cfg.Min, contender.Ceil(3*max(cfg.Peak, 1)))
	}
	return nil
}

// replay is a prepared Config.
type replay struct {
	arrivals  *trace.Arrivals
	service   service.Config // of GPU readers; others have GaugesOnly
	contender contender.Replay
	rest      func()
}

func newReplay(cfg Config) (*replay, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	arrivals := trace.NewArrivals(cfg.Trace, cfg.From, cfg.From+cfg.Seconds, cfg.Seed)
	if err := scaleToPeak(arrivals, &cfg); err != nil {
		return nil, err
	}
	r := &replay{arrivals: arrivals, rest: cfg.Rest, service: service.Config{
		Model: cfg.Model, Startup: cfg.Startup, Patience: cfg.Patience, Seconds: cfg.Seconds, Warmup: cfg.Warmup, Seed: cfg.Seed,
		Need: needOf(arrivals, &cfg),
	}}
	r.service.Replicas = min(max(cfg.Min, contender.Ceil(initialNeed(r.service.Need)/initialLoad)), cfg.Max)
	var start time.Time
	if !cfg.Trace.Start.IsZero() {
		start = cfg.Trace.Start.Add(time.Duration(cfg.From) * time.Second)
	}
	r.contender = contender.Replay{
		Start: start,
		Past:  pastOf(&cfg, arrivals.Factor),
		Model: &r.service.Model, Seed: cfg.Seed, Min: cfg.Min, Max: cfg.Max, Scaled: cfg.Peak > 0,
		Need: r.service.Need, PeakNeed: r.service.PeakNeed(), Scrape: contender.DefaultScrape, Startup: cfg.Startup.Median,
	}
	return r, nil
}

// scaleToPeak scales the load to cfg.Peak, if it is set.
func scaleToPeak(arrivals *trace.Arrivals, cfg *Config) error {
	if cfg.Peak <= 0 {
		return nil
	}
	need := slices.Sorted(slices.Values(cfg.Capacities.Need(arrivals.Recorded())))
	high := need[int(0.99*float64(len(need)-1))]
	if high <= 0 {
		high = need[len(need)-1]
	}
	if high <= 0 {
		return fmt.Errorf("%s: the part from %g s on has no load that could be scaled", cfg.Trace.Name, cfg.From)
	}
	arrivals.Factor = cfg.Peak / high
	return nil
}

// needOf draws all requests once, to compute the replicas that they need.
func needOf(arrivals *trace.Arrivals, cfg *Config) []float64 {
	sums := trace.NewSums(cfg.Seconds, service.NeedSeconds)
	for {
		q, _, ok := arrivals.Next()
		if !ok {
			break
		}
		for i := range q {
			sums.Add(q[i].At, 1, q[i].Prompt, q[i].Output)
		}
		cfg.Rest()
	}
	arrivals.Rewind()
	return cfg.Capacities.Need(sums)
}

// pastOf returns the load before the replay as a controller that ran then has recorded it:
// in steps, with the output tokens of a request spread over the time that they take.
func pastOf(cfg *Config, factor float64) []promise.Load {
	const step = promise.StepSeconds
	from := max(0, cfg.From-cfg.Past)
	steps := int((cfg.From - from) / step)
	if steps < 1 {
		return nil
	}
	arrivals := trace.NewArrivals(cfg.Trace, cfg.From-float64(steps)*step, cfg.From, cfg.Seed+1000)
	arrivals.Factor = factor
	out := make([]promise.Load, steps)
	perToken := usualSlowdown * cfg.Model.IdleTokenSeconds()
	for {
		q, _, ok := arrivals.Next()
		if !ok {
			break
		}
		for i := range q {
			first, last := int(q[i].At/step), int((q[i].At+q[i].Output*perToken)/step)
			each := float32(q[i].Output / float64(last-first+1) / step)
			for k := first; k <= last && k < steps; k++ {
				out[k].Output += each
			}
			if first < steps {
				out[first].Prompt += float32(q[i].Prompt / step)
			}
		}
		cfg.Rest()
	}
	return out
}

// usualSlowdown is the time between tokens on a replica with a usual load, over that of an
// idle one.
const usualSlowdown = 1.3

// initialLoad is the share of their capacity that the first replicas get.
const initialLoad = 0.7

// initialNeed is the highest need of the first two minutes.
func initialNeed(need []float64) float64 {
	first := 0.0
	for _, x := range need[:min(len(need), 120/service.NeedSeconds)] {
		first = max(first, x)
	}
	return first
}

// Result is the result of one entry in one replay.
type Result struct {
	Name   string           `json:"name"`
	Family contender.Family `json:"family"`
	Class  contender.Class  `json:"class,omitempty"`

	Scale float64 `json:"-"` // requests per recorded request
	service.Outcome

	Rules   map[string]int   `json:"rules,omitempty"` // GPUPilot: how often each rule decided
	Minutes []service.Minute `json:"points,omitempty"`
}

// autoscaler is the autoscaler of an entry.
type autoscaler struct {
	service.Autoscaler
	entry int // index
}

// Run replays one load against several entries, each on a service of its own. Results are
// in the order of the entries.
func Run(ctx context.Context, cfg Config, entries []contender.Entry) ([]Result, error) {
	r, err := newReplay(cfg)
	if err != nil {
		return nil, err
	}
	deployments, err := r.deployments(entries)
	if err != nil {
		return nil, err
	}
	for {
		q, until, ok := r.arrivals.Next()
		if !ok {
			break
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for _, d := range deployments {
			deployments = append(deployments, d.Run(q, until)...)
		}
		r.rest()
	}
	out := make([]Result, len(entries))
	for _, d := range deployments {
		d.Finish()
		for _, a := range d.Autoscalers() {
			a := a.(autoscaler)
			out[a.entry] = r.result(d, &entries[a.entry], a.Autoscaler)
		}
	}
	return out, nil
}

func (r *replay) result(d *service.Deployment, e *contender.Entry, a service.Autoscaler) Result {
	return Result{
		Name: e.Name, Family: e.Family, Class: e.Class, Scale: r.arrivals.Factor,
		Outcome: d.Outcome(), Minutes: d.Minutes(), Rules: contender.RuleCounts(a),
	}
}

// deployments returns the initial deployments: one for the entries that read GPU activity
// or rates, and one for those that read only gauges.
func (r *replay) deployments(entries []contender.Entry) (out []*service.Deployment, err error) {
	var all, gaugesOnly []service.Autoscaler
	for i := range entries {
		a, err := entries[i].New(&r.contender)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", entries[i].Name, err)
		}
		if entries[i].GaugesOnly() {
			gaugesOnly = append(gaugesOnly, autoscaler{a, i})
		} else {
			all = append(all, autoscaler{a, i})
		}
	}
	if len(all) > 0 {
		out = append(out, service.New(&r.service, all...))
	}
	if len(gaugesOnly) > 0 {
		cfg := r.service
		cfg.GaugesOnly = true
		out = append(out, service.New(&cfg, gaugesOnly...))
	}
	return out, nil
}

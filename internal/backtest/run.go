// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Config is one replay: a stretch of a trace, scaled, on a service.
type Config struct {
	Trace    *Trace
	Model    Model
	From     float64 // of the trace, seconds
	Seconds  float64 // how long; 0: to its end
	Peak     float64 // replicas that the recorded rates' 99th percentile shall ask for; 0: as recorded
	Startup  Startup
	Min, Max int     // replicas; Max 0: three times the peak
	Patience float64 // seconds after which a client without a first token gives up; 0: 60
	Seed     uint64

	// Warmup is how many seconds at the beginning are simulated but not
	// counted, while windows fill; 0: ten minutes, where that is no more than a
	// fifth of the replay.
	Warmup float64

	sizes *capacities // of the model; nil: to be measured
}

// needSeconds is the width of the bins in which the need is known.
const needSeconds = 15

// DefaultPatience is how long a client waits for its first token, in seconds.
const DefaultPatience = 60

// Stretch picks a stretch of hours of the trace by the seed; the whole trace
// where it is no longer.
func (cfg *Config) Stretch(hours float64) {
	cfg.From, cfg.Seconds = 0, math.Floor(cfg.Trace.Duration)
	if s := math.Floor(hours * 3600); s > 0 && s < cfg.Seconds {
		rng := rand.New(rand.NewPCG(cfg.Seed, 0x57e7c4))
		cfg.From = math.Floor(rng.Float64() * (cfg.Seconds - s))
		cfg.Seconds = s
	}
}

// replay is a Config made ready: the load, and what it needs.
type replay struct {
	cfg      Config
	arrivals *Arrivals
	need     []float64
	initial  int
	peak     float64
}

func prepare(cfg Config) (*replay, error) {
	if rest := math.Floor(cfg.Trace.Duration - cfg.From); cfg.Seconds <= 0 || cfg.Seconds > rest {
		cfg.Seconds = rest
	}
	if cfg.Seconds < 60 {
		return nil, fmt.Errorf("%s: %g s are too short to replay", cfg.Trace.Name, cfg.Seconds)
	}
	if cfg.Patience <= 0 {
		cfg.Patience = DefaultPatience
	}
	if cfg.Warmup <= 0 {
		cfg.Warmup = math.Floor(min(600, cfg.Seconds/5))
	}
	if cfg.sizes == nil {
		cfg.sizes = newCapacities(&cfg.Model)
	}
	r := &replay{arrivals: newArrivals(cfg.Trace, cfg.From, cfg.From+cfg.Seconds, 1, cfg.Seed)}
	if cfg.Peak > 0 {
		rates := slices.Sorted(slices.Values(r.arrivals.rates(cfg.sizes)))
		high := rates[int(0.99*float64(len(rates)-1))]
		if high <= 0 {
			high = rates[len(rates)-1]
		}
		if high <= 0 {
			return nil, fmt.Errorf("%s: no load from %g s on that could be scaled", cfg.Trace.Name, cfg.From)
		}
		r.arrivals.factor = cfg.Peak / high
	}
	sums := newTally(cfg.Seconds, needSeconds)
	for {
		q, _, ok := r.arrivals.next()
		if !ok {
			break
		}
		for i := range q {
			sums.add(q[i].At, 1, q[i].Prompt, q[i].Output)
		}
	}
	r.arrivals.rewind()
	r.need = sums.need(cfg.sizes)
	for _, x := range r.need[min(len(r.need)-1, int(cfg.Warmup/needSeconds)):] {
		r.peak = max(r.peak, x)
	}
	cfg.Min = max(1, cfg.Min)
	if cfg.Max <= 0 {
		cfg.Max = max(cfg.Min, ceil(3*max(cfg.Peak, 1)))
	}
	first := 0.0
	for _, x := range r.need[:min(len(r.need), 8)] {
		first = max(first, x)
	}
	r.initial = min(max(cfg.Min, ceil(first/startLoad)), cfg.Max)
	r.cfg = cfg
	return r, nil
}

// startLoad is the share of their capacity to which replicas are loaded when a
// replay begins.
const startLoad = 0.7

// Run replays one load against several contenders, each on a service of its
// own, and returns their results in their order.
func Run(ctx context.Context, cfg Config, contenders []Contender) ([]Result, error) {
	r, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	clusters, err := r.clusters(contenders)
	if err != nil {
		return nil, err
	}
	for {
		q, until, ok := r.arrivals.next()
		if !ok {
			break
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for _, c := range clusters {
			clusters = append(clusters, c.run(q, until)...)
		}
	}
	out := make([]Result, len(contenders))
	for _, c := range clusters {
		c.finish()
		for _, s := range c.scalers {
			out[s.index] = c.result(r, &contenders[s.index], s.autoscaler)
		}
	}
	return out, nil
}

// clusters are what the replay begins with: one for those contenders that look
// at GPUs and one for those that do not. They fork where contenders differ.
func (r *replay) clusters(contenders []Contender) (out []*cluster, err error) {
	var who [2][]entrant
	for i := range contenders {
		scaler, err := contenders[i].make(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", contenders[i].Name, err)
		}
		k := 0
		if contenders[i].blind() {
			k = 1
		}
		who[k] = append(who[k], entrant{scaler, i})
	}
	for k, entrants := range who {
		if len(entrants) > 0 {
			out = append(out, newCluster(&r.cfg, r.initial, r.need, k == 1, entrants...))
		}
	}
	return out, nil
}

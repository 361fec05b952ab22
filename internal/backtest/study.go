// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// Study is replays of several traces at several start-ups and seeds, with ours
// and the peers side by side in each.
type Study struct {
	Traces   []*Trace
	Models   []Model
	Startups []float64 // medians, seconds
	Low      float64   // replicas that the load's peak shall ask for: from Low in
	High     float64   // the first seed to High in the last or only one, by equal factors
	Seeds    int
	Hours    float64 // of each trace, picked by the seed; 0: all
	Peers    []Contender
	Ours     []Contender
	Also     []Contender                  // for reference: oracle, fixed
	Patience float64                      // seconds; 0: DefaultPatience
	Min, Max int                          // replicas; Max 0: three times the load's peak
	Startup  func(median float64) Startup // nil: DefaultStartup
	Points   bool                         // keep the first seed's minutes of ours, the oracle and the front's nearest

	Workers int // cases at a time; at least 1

	// Known gives what a case that was run before with the same key came to
	// without ours; Learned is told of new ones. Both may be nil. With several
	// workers they, and Progress, are called by several goroutines.
	Known   func(key string) (Kept, bool)
	Learned func(key string, k Kept)
	// Progress is told of each case that is done. It may be nil.
	Progress func(done, of int, c *Case)

	fingerprint string                 // of what is kept
	sizes       map[string]*capacities // by model
}

// Case is one replay.
type Case struct {
	Trace   string  `json:"trace"`
	Model   string  `json:"model"`
	Startup float64 `json:"startupSeconds"` // median
	Seed    uint64  `json:"seed"`
	Peak    float64 `json:"peakReplicas"` // that the load was scaled to; 0: it was not
	Scale   float64 `json:"scale"`        // requests for one of the recording; 1: as recorded
	Hours   float64 `json:"hours"`

	Ours  []Result `json:"ours"`
	Also  []Result `json:"also,omitempty"`
	Peers []Mark   `json:"peers"`
	Shown []Result `json:"shown,omitempty"` // peers with their minutes
}

// Verdict is one of ours in one case, against the front of its class.
type Verdict struct {
	Ours       string  `json:"ours"`
	Class      Class   `json:"class"`
	Ratio      float64 `json:"ratio"`
	Front      float64 `json:"frontViolationsPercent"` // at our GPU-hours
	FrontTurns float64 `json:"frontTurnsPerHour"`      // of the front's nearest point
	Nearest    string  `json:"nearest"`
	// Regret is our GPU-hours over those of the cheapest oracle with no more
	// violations than ours, less one (of the best oracle, where none has);
	// Excess is our violations less that oracle's, in percentage points.
	Regret float64 `json:"regret"`
	Excess float64 `json:"excess"`
}

// Replays is how many cases a run comes to.
func (s *Study) Replays() int { return len(s.Traces) * len(s.Models) * len(s.Startups) * s.Seeds }

// Run does the study. Cases come in order of trace, model, start-up and seed.
// Where ctx ends before it, those that were done come with ctx's error.
func (s *Study) Run(ctx context.Context) ([]Case, error) {
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	type job struct {
		t       *Trace
		m       Model
		startup float64
		seed    int
	}
	var jobs []job
	for _, t := range s.Traces {
		for _, m := range s.Models {
			for _, startup := range s.Startups {
				for seed := range s.Seeds {
					jobs = append(jobs, job{t, m, startup, seed})
				}
			}
		}
	}
	out, errs := make([]Case, len(jobs)), make([]error, len(jobs))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var next, done atomic.Int64
	var all sync.WaitGroup
	for range max(1, min(s.Workers, len(jobs))) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(jobs); i = int(next.Add(1)) - 1 {
				j := jobs[i]
				c, err := s.one(ctx, j.t, j.m, j.startup, j.seed)
				if err != nil {
					errs[i] = err
					cancel()
					return
				}
				out[i] = c
				if n := int(done.Add(1)); s.Progress != nil {
					s.Progress(n, len(jobs), &out[i])
				}
			}
		})
	}
	all.Wait()
	for _, err := range errs { // the first that is not only the others' being stopped
		if err != nil && !errors.Is(err, context.Canceled) {
			return nil, err
		}
	}
	out = slices.DeleteFunc(out, func(c Case) bool { return c.Seed == 0 }) // not done
	return out, ctx.Err()
}

// peak is the load's size for a seed.
func (s *Study) peak(seed int) float64 {
	if s.Seeds < 2 || s.Low <= 0 {
		return s.High
	}
	return s.Low * math.Pow(s.High/s.Low, float64(seed)/float64(s.Seeds-1))
}

func (s *Study) one(ctx context.Context, t *Trace, m Model, startup float64, seed int) (Case, error) {
	cfg := Config{Trace: t, Model: m, Seed: uint64(seed) + 1, Peak: s.peak(seed), Patience: s.Patience, Min: s.Min, Max: s.Max}
	cfg.Startup = DefaultStartup(startup)
	if s.Startup != nil {
		cfg.Startup = s.Startup(startup)
	}
	cfg.Stretch(s.Hours)
	c := Case{Trace: t.Name, Model: m.Name, Startup: startup, Seed: cfg.Seed, Peak: cfg.Peak, Hours: cfg.Seconds / 3600}
	cfg.sizes = s.sizes[m.Name]
	key := s.key(&cfg)
	kept, known := Kept{}, false
	if s.Known != nil {
		kept, known = s.Known(key)
	}
	all := s.Ours
	if !known {
		all = slices.Concat(s.Ours, s.Also, s.Peers)
	}
	results, err := Run(ctx, cfg, all)
	if err != nil {
		return c, err
	}
	ours, others := results[:len(s.Ours)], results[len(s.Ours):]
	if !known {
		kept = keep(others[:len(s.Also)], others[len(s.Also):])
		if s.Learned != nil {
			s.Learned(key, kept)
		}
	}
	c.Ours, c.Also, c.Peers = ours, kept.Also, kept.Peers
	if len(ours) > 0 {
		c.Scale = ours[0].Scale
	}
	if !s.Points || seed > 0 {
		drop(c.Ours)
		return c, nil
	}
	return c, s.show(ctx, cfg, &c)
}

func drop(r []Result) {
	for i := range r {
		r[i].Points = nil
	}
}

// show runs the front's points nearest to ours again and keeps their minutes.
func (s *Study) show(ctx context.Context, cfg Config, c *Case) error {
	var again []Contender
	for _, v := range s.Judge(c) {
		i := slices.IndexFunc(s.Peers, func(p Contender) bool { return p.Name == v.Nearest })
		if i >= 0 && !slices.ContainsFunc(again, func(p Contender) bool { return p.Name == v.Nearest }) {
			again = append(again, s.Peers[i])
		}
	}
	if len(again) == 0 {
		return nil
	}
	var err error
	c.Shown, err = Run(ctx, cfg, again)
	return err
}

// Judge compares each of ours with the front of its class and with the oracle.
func (s *Study) Judge(c *Case) []Verdict {
	class := map[string]Class{}
	for i := range s.Peers {
		class[s.Peers[i].Name] = s.Peers[i].Class
	}
	out := make([]Verdict, 0, len(c.Ours))
	for i := range c.Ours {
		ours := markOf(&c.Ours[i])
		v := Verdict{Ours: ours.Name, Class: c.Ours[i].Class}
		var marks []Mark
		for _, m := range c.Peers {
			if class[m.Name] == v.Class {
				marks = append(marks, m)
			}
		}
		if len(marks) > 0 {
			front := Front(marks)
			v.Ratio, v.Front = Ratio(front, ours), FrontAt(front, ours.GPUHours)
			if n, ok := Nearest(front, ours.GPUHours); ok {
				v.Nearest, v.FrontTurns = n.Name, n.Turns
			}
		}
		if o := c.oracle(ours.Violations); o != nil {
			v.Regret, v.Excess = ours.GPUHours/o.GPUHours-1, ours.Violations-o.Violations
		}
		out = append(out, v)
	}
	return out
}

// oracle is the cheapest oracle that fails no more requests than this, or the
// one that fails the fewest.
func (c *Case) oracle(violations float64) (best *Result) {
	for k := range c.Also {
		o := &c.Also[k]
		if o.Family != "oracle" || o.GPUHours <= 0 {
			continue
		}
		switch {
		case best == nil,
			o.Violations <= violations && (best.Violations > violations || o.GPUHours < best.GPUHours),
			best.Violations > violations && o.Violations < best.Violations:
			best = o
		}
	}
	return best
}

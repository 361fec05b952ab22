// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
)

// Kept is what a case comes to without ours. It does not change with our
// policy or engine, so it may be kept between runs.
type Kept struct {
	Peers []Mark   `json:"peers,omitempty"`
	Also  []Result `json:"also,omitempty"`
}

func keep(also, peers []Result) Kept {
	drop(also)
	k := Kept{Also: also, Peers: make([]Mark, len(peers))}
	for i := range peers {
		k.Peers[i] = markOf(&peers[i])
	}
	return k
}

// prepare readies what the study's cases share.
func (s *Study) prepare(ctx context.Context) (err error) {
	s.sizes = map[string]*capacities{}
	for _, m := range s.Models {
		s.sizes[m.Name] = newCapacities(&m)
	}
	if s.Known != nil || s.Learned != nil {
		s.fingerprint, err = s.probe(ctx)
	}
	return err
}

// key tells one case from another, and the simulation that it was run with.
func (s *Study) key(cfg *Config) string {
	return fmt.Sprintf("%s|%s|%+v|%+v|%g|%g|%g|%d|%g|%d|%d", s.fingerprint, cfg.Trace.Name, cfg.Model, cfg.Startup,
		cfg.From, cfg.Seconds, cfg.Peak, cfg.Seed, cfg.Patience, cfg.Min, cfg.Max)
}

// probe replays an hour that has something of everything, so that results kept
// from another version of the simulation or of the peers are known as such.
func (s *Study) probe(ctx context.Context) (string, error) {
	others := slices.Concat(s.Peers, s.Also)
	if len(others) == 0 || len(s.Models) == 0 {
		return "", nil
	}
	t := &Trace{Name: "probe", Kind: Windows, Duration: 3600}
	for i, rate := range []float64{2, 6, 4, 1, 1, 1, 5, 8, 2, 2, 1, 3} {
		t.windows = append(t.windows, window{
			start: float64(300 * i), width: 300, rate: rate, law: gammaLaw, shape: 0.5, prompt: DefaultPrompt, output: DefaultOutput,
		})
	}
	startup := DefaultStartup(60)
	startup.Spells = 48
	cfg := Config{Trace: t, Model: s.Models[0], Peak: 3, Startup: startup, Seed: 1, Warmup: 60, sizes: s.sizes[s.Models[0].Name]}
	results, err := Run(ctx, cfg, others)
	if err != nil {
		return "", fmt.Errorf("probe the simulation: %w", err)
	}
	h := fnv.New64a()
	for i := range results {
		r := &results[i]
		fmt.Fprintln(h, r.Name, r.Requests, r.Violations, r.GPUHours, r.Turns)
	}
	return fmt.Sprintf("%016x", h.Sum64()), nil
}

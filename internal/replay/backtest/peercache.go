// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

// Baseline is the part of a case that does not depend on GPUPilot: the results of the peers
// and of the references. It can be cached between runs.
type Baseline struct {
	Peers      []Point  `json:"peers,omitempty"`
	References []Result `json:"also,omitempty"`
}

func newBaseline(references, peers []Result) Baseline {
	dropMinutes(references)
	b := Baseline{References: references, Peers: make([]Point, len(peers))}
	for i := range peers {
		b.Peers[i] = pointOf(&peers[i])
	}
	return b
}

// key identifies a case, and the version of the simulation.
func (s *Study) key(cfg *Config) string {
	return fmt.Sprintf("%s|%s|%+v|%+v|%g|%g|%g|%d|%g|%d|%d", s.fingerprint, cfg.Trace.Name, cfg.Model, cfg.Startup,
		cfg.From, cfg.Seconds, cfg.Peak, cfg.Seed, cfg.Patience, cfg.Min, cfg.Max)
}

// probeLoad is an hour with bursts. Its Gamma distribution has a shape of 0.5.
const probeLoad = `client,t_s,rate_rps,iat_dist,p1,prompt_tokens_mean,output_tokens_mean
1,0,2,Gamma,0.5,,
1,300,6,Gamma,0.5,,
1,600,4,Gamma,0.5,,
1,900,1,Gamma,0.5,,
1,1200,1,Gamma,0.5,,
1,1500,1,Gamma,0.5,,
1,1800,5,Gamma,0.5,,
1,2100,8,Gamma,0.5,,
1,2400,2,Gamma,0.5,,
1,2700,2,Gamma,0.5,,
1,3000,1,Gamma,0.5,,
1,3300,3,Gamma,0.5,,
`

// probe returns a fingerprint of the simulation and of the peers: a hash of their results
// on a short load. Cached results of another version have another fingerprint.
func (s *Study) probe(ctx context.Context) (string, error) {
	others := slices.Concat(s.Peers, s.References)
	if len(others) == 0 || len(s.Models) == 0 {
		return "", nil
	}
	load, err := trace.Read("probe", strings.NewReader(probeLoad))
	if err != nil {
		return "", err
	}
	startup := service.DefaultStartup(60)
	startup.ShortagesPerDay = 48
	cfg := Config{Trace: load, Model: s.Models[0], Peak: 3, Startup: startup, Seed: 1, Warmup: 60, Capacities: s.capacities[s.Models[0].Name]}
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

// PeerCache is a file of baselines. Several runs can share it. It is safe for concurrent
// use.
type PeerCache struct {
	path      string
	mu        sync.Mutex
	baselines map[string]Baseline
	changed   bool
	saved     time.Time
}

// saveInterval is the most work that an interrupted run loses.
const saveInterval = 2 * time.Minute

// OpenPeerCache reads a file. A missing or invalid file is an empty cache.
func OpenPeerCache(path string) (*PeerCache, error) {
	c := &PeerCache{path: path, saved: time.Now(), baselines: map[string]Baseline{}}
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	if json.Unmarshal(b, &c.baselines) != nil {
		c.baselines = map[string]Baseline{}
	}
	return c, nil
}

// Save writes the file, if there are new baselines. It keeps those that other runs have
// written meanwhile.
func (c *PeerCache) Save() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.changed {
		return nil
	}
	current, err := OpenPeerCache(c.path)
	if err != nil {
		return err
	}
	maps.Copy(current.baselines, c.baselines)
	b, err := json.Marshal(current.baselines)
	if err != nil {
		return err
	}
	temporary := fmt.Sprintf("%s.%d", c.path, os.Getpid())
	if err := errors.Join(os.WriteFile(temporary, b, 0o644), os.Rename(temporary, c.path)); err != nil {
		return err
	}
	c.changed, c.saved = false, time.Now()
	return nil
}

// Get returns the baseline of a key. It fits Study.LoadCached.
func (c *PeerCache) Get(key string) (Baseline, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, ok := c.baselines[key]
	return b, ok
}

// Put adds a baseline. It fits Study.StoreCached.
func (c *PeerCache) Put(key string, b Baseline) {
	c.mu.Lock()
	c.baselines[key], c.changed = b, true
	due := time.Since(c.saved) > saveInterval
	c.mu.Unlock()
	if due {
		_ = c.Save() // the last Save returns the error
	}
}

// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/series"
)

// Config says how to scrape. Zero values take the defaults.
type Config struct {
	Interval   time.Duration // between two scrapes of a target; 1 s
	Timeout    time.Duration // of one scrape; 5 s
	MaxBody    int64         // bytes of one answer; 16 MiB
	Guard      time.Duration // between the end of an agent's collection and its scrape; 20 ms
	MaxBackoff time.Duration // between two scrapes of a target that fails; 5 s
}

func (c Config) withDefaults() Config {
	c.Interval = cmp.Or(c.Interval, time.Second)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	c.MaxBody = cmp.Or(c.MaxBody, 16<<20)
	c.Guard = cmp.Or(c.Guard, 20*time.Millisecond)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, 5*time.Second)
	return c
}

// Deps are what a Scraper works with.
type Deps struct {
	Client Doer // NewClient's
	// Dial connects to the targets that are asked over plain HTTP and without
	// credentials, each over one connection that is kept open. nil: Client asks them,
	// which at thousands of targets takes several times the memory.
	Dial Dialer
	// Exporters asks targets of the kinds Agent and DCGM; nil: Client does. Pods
	// are tenants' and never get its credentials.
	Exporters Doer
	Store     *series.Store
	Deliver   func(target string, at time.Time) // called when samples of this time are in the store; may be nil, must not block
	Log       *slog.Logger                      // nil: slog.Default()
}

// Scraper scrapes targets, each at times of its own, while Run runs.
type Scraper struct {
	cfg     Config
	deps    Deps
	buffers sync.Pool

	mu      sync.Mutex
	wanted  []Target
	changed chan struct{}
	runners map[string]*runner
	outside map[string]uint64  // values out of range, by metric
	leaving map[string]*runner // taken off the list, not yet done
	refused map[string]State   // not scraped, because there are too many

	scrapes, samples, badLines, repeated atomic.Uint64
	nanos                                atomic.Int64
	failures                             [numReasons]atomic.Uint64
}

// New makes a scraper without targets.
func New(cfg Config, deps Deps) *Scraper {
	if deps.Log == nil {
		deps.Log = slog.Default()
	}
	return &Scraper{
		cfg: cfg.withDefaults(), deps: deps,
		buffers: sync.Pool{New: newBuffer},
		changed: make(chan struct{}, 1),
		runners: map[string]*runner{},
		outside: map[string]uint64{},
		leaving: map[string]*runner{},
	}
}

// Sync says what is to be scraped from now on. Targets that stay go on
// undisturbed, though what is wanted of them may differ; one whose URL or kind
// differs begins anew and keeps its window; one that is not in the list any
// more is dropped from the store. Of two with one name the first counts.
func (s *Scraper) Sync(targets []Target) {
	s.mu.Lock()
	s.wanted = slices.Clone(targets)
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Run scrapes until ctx ends, and then waits for its goroutines. It is called
// once.
func (s *Scraper) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	defer s.stopAll()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		}
		s.follow(ctx, &all)
	}
}

// stopAll ends all runners.
func (s *Scraper) stopAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.runners {
		r.stop()
	}
}

// follow starts and ends runners as Sync said.
func (s *Scraper) follow(ctx context.Context, all *sync.WaitGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := make(map[string]*Target, len(s.wanted))
	refused := admit(s.wanted, func(name string) bool { return s.runners[name] != nil }, s.mostWanted())
	s.noteRefused(refused)
	for i := range s.wanted {
		t := &s.wanted[i]
		if wanted[t.Name] != nil || refused[t.Name] != nil {
			continue
		}
		wanted[t.Name] = t
		old := s.runners[t.Name]
		if old == nil {
			s.start(ctx, all, t, s.leaving[t.Name])
			continue
		}
		have := old.want.Load()
		switch {
		case have.equal(t):
		case have.URL == t.URL && have.Kind == t.Kind:
			old.want.Store(t)
		default:
			old.stop()
			s.start(ctx, all, t, old)
		}
	}
	maps.DeleteFunc(s.leaving, func(_ string, r *runner) bool { return r.isDone() })
	for name, r := range s.runners {
		if wanted[name] == nil {
			r.gone.Store(true)
			r.stop()
			delete(s.runners, name)
			s.leaving[name] = r
		}
	}
}

// noteRefused keeps the states of the targets that are not scraped.
func (s *Scraper) noteRefused(refused map[string]error) {
	if len(refused) == 0 {
		s.refused = nil
		return
	}
	if len(s.refused) == 0 {
		s.deps.Log.Warn("targets are not scraped, there are too many for the memory limit", "targets", len(s.wanted), "refused", len(refused))
	}
	before := s.refused
	s.refused = make(map[string]State, len(refused))
	for i := range s.wanted {
		t := &s.wanted[i]
		if err := refused[t.Name]; err != nil {
			st := State{Name: t.Name, URL: t.URL.String(), Kind: t.Kind, Err: err, ErrSince: time.Now()}
			if old, ok := before[t.Name]; ok {
				st.ErrSince = old.ErrSince
			}
			s.refused[t.Name] = st
		}
	}
}

func (s *Scraper) start(ctx context.Context, all *sync.WaitGroup, t *Target, before *runner) {
	ctx, cancel := context.WithCancel(ctx)
	r := &runner{
		s: s, cancel: cancel, done: make(chan struct{}),
		phase: newPhase(&s.cfg, t.Name),
		state: State{Name: t.Name, URL: t.URL.String(), Kind: t.Kind},
	}
	r.want.Store(t)
	s.runners[t.Name] = r
	all.Add(1)
	r.run(ctx, before, all.Done)
}

func (s *Scraper) count(f *failure, took time.Duration) {
	s.scrapes.Add(1)
	s.nanos.Add(int64(took))
	if f != nil {
		s.failures[f.reason].Add(1)
	}
}

// Stats are counts since the start.
type Stats struct {
	Targets  int // now
	Refused  int // now, because there are too many for the memory limit
	Scrapes  uint64
	Failures map[string]uint64 // by Reason; every reason is there
	Repeated uint64            // pages that were there already: asked too early
	Samples  uint64
	BadLines uint64
	Took     time.Duration // all requests together

	Freshness map[string]int // targets now by how their values are known to be new, as State has it
	Frozen    int            // devices whose values have not changed for too long

	OutOfRange map[string]uint64 // values that were none for being out of range, by metric
}

// Stats meters the scraper.
func (s *Scraper) Stats() Stats {
	st := Stats{
		Scrapes: s.scrapes.Load(), Repeated: s.repeated.Load(), Samples: s.samples.Load(),
		BadLines: s.badLines.Load(), Took: time.Duration(s.nanos.Load()),
		Failures:  make(map[string]uint64, numReasons),
		Freshness: map[string]int{FreshByTimestamp: 0, FreshByEnergy: 0, FreshByPower: 0, FreshUnknown: 0},
	}
	for r := range numReasons {
		st.Failures[r.String()] = s.failures[r].Load()
	}
	s.mu.Lock()
	st.Targets, st.Refused = len(s.runners), len(s.refused)
	st.OutOfRange = maps.Clone(s.outside)
	for _, r := range s.runners {
		r.mu.Lock()
		if r.state.Freshness != "" {
			st.Freshness[r.state.Freshness]++
		}
		st.Frozen += r.state.Frozen
		r.mu.Unlock()
	}
	s.mu.Unlock()
	return st
}

// States says how each target fares, sorted by name.
func (s *Scraper) States() []State {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]State, 0, len(s.runners)+len(s.refused))
	for _, st := range s.refused {
		out = append(out, st)
	}
	for _, r := range s.runners {
		r.mu.Lock()
		out = append(out, r.state)
		r.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b State) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"cmp"
	"context"
	"crypto/x509"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// Config is the configuration of a Scraper. Zero values take the defaults.
type Config struct {
	Interval   time.Duration // between two scrapes of a target; 1 s by default
	Timeout    time.Duration // of one scrape; 5 s by default
	MaxBody    int64         // limit of one response in bytes; 16 MiB by default
	Guard      time.Duration // between the end of an agent's collection and its scrape; 20 ms by default
	MaxBackoff time.Duration // between two scrapes of a target that fails; 5 s by default
}

func (c Config) withDefaults() Config {
	c.Interval = cmp.Or(c.Interval, time.Second)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	c.MaxBody = cmp.Or(c.MaxBody, 16<<20)
	c.Guard = cmp.Or(c.Guard, 20*time.Millisecond)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, 5*time.Second)
	return c
}

// Deps are the collaborators of a Scraper.
type Deps struct {
	Client Doer // from NewClient
	// Dial opens the persistent connections to targets with plain HTTP and without
	// credentials. nil: they are scraped through Client, which takes several times
	// the memory for thousands of targets.
	Dial Dialer
	// Exporters scrapes targets of the kinds Agent and DCGM; nil: Client does. Pods
	// are tenants' and never get its credentials. If Agents is not nil, it scrapes
	// targets of the kind Agent in place of Exporters.
	Exporters, Agents Doer

	Store   *series.Store
	Deliver func(target string, at time.Time) // as for OnDeliver; may be nil
	Log     *slog.Logger                      // nil: slog.Default()
}

// Scraper scrapes targets, each on its own schedule, while Run runs.
type Scraper struct {
	cfg     Config
	deps    Deps
	buffers sync.Pool

	names     atomic.Pointer[page.Names] // nil: no query reads series
	described page.Descriptions

	mu         sync.Mutex
	wanted     []Target
	changed    chan struct{}
	runners    map[string]*runner
	outOfRange map[string]uint64         // values, by metric
	leaving    map[string]*runner        // runners of removed targets that are not done yet
	refused    map[string]State          // targets that are not scraped because there are too many
	roots      map[string]*x509.CertPool // of pods with TLS, by TLS.CA

	scrapes, samples, badLines, repeated atomic.Uint64
	lines                                atomic.Int64
	nanos                                atomic.Int64
	failures                             [numReasons]atomic.Uint64
}

// New returns a scraper without targets.
func New(cfg Config, deps Deps) *Scraper {
	if deps.Log == nil {
		deps.Log = slog.Default()
	}
	return &Scraper{
		cfg: cfg.withDefaults(), deps: deps,
		buffers:    sync.Pool{New: newBuffer},
		changed:    make(chan struct{}, 1),
		runners:    map[string]*runner{},
		outOfRange: map[string]uint64{},
		leaving:    map[string]*runner{},
	}
}

// Sync sets the targets to scrape. Targets that stay are not interrupted, even if
// their fields or metrics change. A target with another URL, kind, TLS or interval starts
// again and keeps its window; one with another UID starts without. A target that is not in the list is dropped from the store. Of
// two targets with the same name, the first counts.
func (s *Scraper) Sync(targets []Target) {
	s.mu.Lock()
	s.wanted = slices.Clone(targets)
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// SetNames sets the metrics whose series are kept for queries. Targets that stay are
// not interrupted.
func (s *Scraper) SetNames(n *page.Names) { s.names.Store(n) }

// Lines returns the number of sample lines on the whole pages of all exporters of GPUs.
func (s *Scraper) Lines() int { return int(s.lines.Load()) }

// Metadata returns what pages say about a metric: those of dcgm-exporters, and those of
// pods in some namespaces; nil: in all.
func (s *Scraper) Metadata(namespaces []string, metric string) []page.Metadata {
	return s.described.Of(namespaces, metric)
}

// Described lists the metrics that pages of a namespace's pods describe, in no order.
func (s *Scraper) Described(namespace string) []string { return s.described.Names(namespace) }

// OnDeliver sets f, which is called after samples of a time are stored. It must not block.
// It must be called before Run.
func (s *Scraper) OnDeliver(f func(target string, at time.Time)) { s.deps.Deliver = f }

// Run scrapes until ctx ends, and then waits for its goroutines. Call it once.
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

// stopAll stops all runners.
func (s *Scraper) stopAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.runners {
		r.stop()
	}
}

// follow starts and stops runners according to the last Sync.
func (s *Scraper) follow(ctx context.Context, all *sync.WaitGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := make(map[string]*Target, len(s.wanted))
	refused := admit(s.wanted, func(name string) bool { return s.runners[name] != nil }, s.maxWanted())
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
		case have.UID == t.UID && have.URL == t.URL && have.Kind == t.Kind && have.TLS == t.TLS:
			old.want.Store(t.copy())
		default:
			old.gone.Store(have.UID != t.UID)
			old.stop()
			s.start(ctx, all, t, old)
		}
	}
	s.dropRoots()
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

// noteRefused records the states of the targets that are not scraped.
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
	r.want.Store(t.copy())
	s.runners[t.Name] = r
	all.Add(1)
	r.run(ctx, before, all.Done)
}

// countOutOfRange adds a page's counts to the scraper's.
func (s *Scraper) countOutOfRange(counts page.OutOfRange) {
	if len(counts) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range counts {
		s.outOfRange[c.Metric] += c.Values
	}
}

func (s *Scraper) count(f *failure, took time.Duration) {
	s.scrapes.Add(1)
	s.nanos.Add(int64(took))
	if f != nil {
		s.failures[f.reason].Add(1)
	}
}

// Stats are the scraper's figures: counts since the start, except where noted.
type Stats struct {
	Targets  int // scraped now
	Refused  int // not scraped now, because there are too many for the memory limit
	Scrapes  uint64
	Failures map[string]uint64 // by Reason; has every reason
	Repeated uint64            // pages of an earlier collection: the scrape was too early
	Samples  uint64
	BadLines uint64
	Took     time.Duration // the sum of all requests

	Freshness map[string]int // targets now, by State.Freshness
	Frozen    int            // devices now whose values have not changed for too long

	OutOfRange map[string]uint64 // values omitted because they were out of range, by metric
}

// Stats returns the scraper's figures.
func (s *Scraper) Stats() Stats {
	st := Stats{
		Scrapes: s.scrapes.Load(), Repeated: s.repeated.Load(), Samples: s.samples.Load(),
		BadLines: s.badLines.Load(), Took: time.Duration(s.nanos.Load()),
		Failures:  make(map[string]uint64, numReasons),
		Freshness: map[string]int{page.FreshByTimestamp: 0, page.FreshByEnergy: 0, page.FreshByPower: 0, page.FreshUnknown: 0},
	}
	for r := range numReasons {
		st.Failures[r.String()] = s.failures[r].Load()
	}
	s.mu.Lock()
	st.Targets, st.Refused = len(s.runners), len(s.refused)
	st.OutOfRange = maps.Clone(s.outOfRange)
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

// States returns the state of each target, sorted by name.
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

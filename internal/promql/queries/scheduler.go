// SPDX-License-Identifier: Apache-2.0

// Package queries evaluates the PromQL of GPUAutoscalers and MetricQueries.
package queries

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// Every is the time between two evaluations of a query, unless its owners ask for
// another one. Backends rarely scrape more often.
const Every = 2 * time.Second

// defaultPerNamespace is SchedulerConfig.PerNamespace if it is not set.
const defaultPerNamespace = 100

// defaultTimeout is SchedulerConfig.Timeout if it is not set.
const defaultTimeout = 30 * time.Second

// ForBackend returns the slots of a PromQL backend over HTTP.
func ForBackend() fair.Config { return fair.Config{Slots: 8, Share: 4, ForSignals: 4, ForLight: 1} }

// ForWindows returns the slots of rules, signals and MetricQueries over the windows.
func ForWindows() fair.Config { return fair.Config{Slots: 3, Share: 1, ForSignals: 2, ForLight: 1} }

// errNoBackend is the error of all PromQL if no backend is configured.
var errNoBackend = errors.New("this replica evaluates no PromQL: start the controller with --prometheus-url, or with the role query")

// Kind is the kind of an owner.
type Kind string

// The kinds of owners.
const (
	GPUAutoscaler Kind = "GPUAutoscaler" // its queries are signals
	MetricQuery   Kind = "MetricQuery"
)

// Key identifies a query. Owners with the same key share its evaluations.
type Key struct {
	Scope  string // the namespace that the query is limited to; empty: none
	PromQL string // as it is sent; empty if Query.Read reads the value
	Object string // identifies Query.Read
}

// KeyOf returns the key of a query of a namespace, which was limited to its series.
// Queries of trusted namespaces give the same result in each of them, so that these
// share them.
func KeyOf(namespace, limited string, trusted bool) Key {
	if trusted {
		return Key{PromQL: limited}
	}
	return Key{Scope: namespace, PromQL: limited}
}

// Query is a query of an owner.
type Query struct {
	Key   Key
	Every time.Duration // between two evaluations; 0: Every
	// Read reads the value instead of PromQL. It needs no slot. The text of its error is
	// shown to the owner's author.
	Read func(ctx context.Context) (series.Sample, error)
}

// Owner is an object with queries.
type Owner struct {
	Name    string
	Created time.Time
	Queries []Query
	// Changed is called after each evaluation of one of the queries. It must not block,
	// and may be called once more after the owner is gone. nil: nobody is told.
	Changed func()
}

// Answer is the newest answer to a query.
type Answer struct {
	Sample    series.Sample
	Evaluated time.Time // when the sample was evaluated; zero: there is none
	Problem   string    // why there is no newer one, for the query's author; empty: no problem
	Refused   bool      // the query is beyond the limit of its namespace
	// NoRequests says that the query is NaN, because it divides 0 by 0: the sample is its
	// value with 0 for such a quotient.
	NoRequests bool
}

// SchedulerConfig holds the settings of a Scheduler. Zero values mean the defaults.
type SchedulerConfig struct {
	PerNamespace int           // different queries of one namespace; 100
	Timeout      time.Duration // of one evaluation, without the wait for a slot; 30 s
}

// SchedulerDeps holds the collaborators of a Scheduler.
type SchedulerDeps struct {
	// Query evaluates a PromQL query to one number. scope is Key.Scope. nil: there is no
	// backend, and no PromQL is evaluated.
	Query func(ctx context.Context, scope, promql string) (series.Sample, error)
	Slots *fair.Slots  // those of Query, whose caller holds one; nil: those of a backend
	Log   *slog.Logger // nil discards
}

// Scheduler evaluates the queries of GPUAutoscalers and MetricQueries while Run runs, and
// keeps their newest answers. Equal queries run once, and a failing query does not
// affect the others. Its methods are safe for concurrent use.
//
// A namespace has one budget for the different queries of both kinds, and older owners
// have precedence, so that a new one never stops the query of another. A part of the
// budget, as of the slots, is for GPUAutoscalers only.
type Scheduler struct {
	cfg    SchedulerConfig
	deps   SchedulerDeps
	meters *meters
	wake   chan struct{} // there are pending queries

	mu      sync.Mutex
	tenants map[string]*tenant // by namespace
	queries map[Key]*query
	pending []*query // to be started
}

// NewScheduler makes a scheduler. Run starts it.
func NewScheduler(cfg SchedulerConfig, deps SchedulerDeps) *Scheduler {
	if cfg.PerNamespace <= 0 {
		cfg.PerNamespace = defaultPerNamespace
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if deps.Slots == nil {
		deps.Slots = fair.NewSlots(ForBackend())
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return &Scheduler{
		cfg: cfg, deps: deps, meters: newMeters(), wake: make(chan struct{}, 1),
		tenants: map[string]*tenant{}, queries: map[Key]*query{},
	}
}

// Run evaluates until ctx is done.
func (s *Scheduler) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		s.mu.Lock()
		for _, q := range s.pending {
			s.start(ctx, q, &running)
		}
		s.pending = nil
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
	}
}

// start starts to evaluate a query, unless it was removed. s.mu is held.
func (s *Scheduler) start(ctx context.Context, q *query, running *sync.WaitGroup) {
	if s.queries[q.key] != q {
		return
	}
	ctx, q.cancel = context.WithCancel(ctx)
	cancel := q.cancel
	running.Go(func() {
		defer cancel()
		s.run(ctx, q)
	})
}

// Set replaces the owners of a kind in a namespace. It keeps the list, which must not be
// changed afterwards.
func (s *Scheduler) Set(kind Kind, namespace string, owners []Owner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[namespace]
	if t == nil {
		t = &tenant{owners: map[Kind][]Owner{}}
		s.tenants[namespace] = t
	}
	t.owners[kind] = owners
	s.arrange(namespace, t)
	if len(t.owners[GPUAutoscaler])+len(t.owners[MetricQuery]) == 0 {
		delete(s.tenants, namespace)
	}
}

// arrange starts the queries that a tenant has gained, and stops those that it has lost.
// s.mu is held.
func (s *Scheduler) arrange(namespace string, t *tenant) {
	granted, refused := s.share(t)
	for key := range t.granted {
		if _, ok := granted[key]; !ok {
			s.leave(namespace, s.queries[key])
		}
	}
	for key, askers := range granted {
		q := s.queries[key]
		if q == nil {
			q = newQuery(key, askers[0].read)
			s.queries[key] = q
			s.pending = append(s.pending, q)
		}
		q.askers[namespace] = askers
		q.settle()
	}
	s.meters.recordRefused(t.refused, refused)
	t.granted, t.refused = granted, refused
	if !slices.ContainsFunc(t.owners[GPUAutoscaler], func(o Owner) bool { return len(o.Queries) > 0 }) {
		s.meters.forget(namespace)
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// leave removes a namespace from those that ask a query. s.mu is held.
func (s *Scheduler) leave(namespace string, q *query) {
	delete(q.askers, namespace)
	if len(q.askers) > 0 {
		q.settle()
		return
	}
	delete(s.queries, q.key)
	if q.cancel != nil {
		q.cancel()
	}
}

// Answer returns the newest answer to a query of a namespace. Without a problem and a
// sample, it was not evaluated yet.
func (s *Scheduler) Answer(namespace string, key Key) Answer {
	if key.PromQL != "" && s.deps.Query == nil {
		return Answer{Problem: errNoBackend.Error()}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tenants[namespace]; t != nil {
		if r, ok := t.refused[key]; ok {
			return Answer{Problem: s.refusalMessage(namespace, r), Refused: true}
		}
	}
	q := s.queries[key]
	if q == nil {
		return Answer{}
	}
	return Answer{Sample: q.sample, Evaluated: q.evaluated, Problem: q.problem(), NoRequests: q.noRequests}
}

// Rejected counts a query signal that is not allowed, so that it is not set.
func (s *Scheduler) Rejected(err error) { s.meters.recordRejected(err) }

// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	kubelabels "k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
)

// ErrUnknown means that no rule makes a metric of that name.
var ErrUnknown = errors.New("no rule of the adapter's file makes this metric")

// ErrRequest means that a request cannot be turned into a query of the rule.
var ErrRequest = errors.New("the request cannot be used in the rule's query")

// Sample is one element of a query's result.
type Sample struct {
	Labels labels.Labels
	Value  float64
	At     time.Time
}

// QueryFunc evaluates PromQL at a time. Its result is a vector, or a scalar as one
// sample without labels.
type QueryFunc func(ctx context.Context, promql string, at time.Time) ([]Sample, error)

// ServerConfig holds the settings of a Server. Zero values mean the defaults.
type ServerConfig struct {
	// File has the rules. It is read again when it changes. Empty: Load sets them.
	File string
	// Refresh is how long the result of a query is used; 1 s.
	Refresh time.Duration
	// Resolve finds the custom resources of overrides. nil: there are none.
	Resolve ResolveFunc
}

// Deps are the collaborators of a Server.
type Deps struct {
	Backend
	Log *slog.Logger
}

// Server serves the metrics of a file's rules. Its methods are safe for concurrent use.
type Server struct {
	cfg   ServerConfig
	deps  Deps
	rules atomic.Pointer[RuleSet]
	index atomic.Pointer[index]
	cache cache

	loading sync.Mutex // held while rules are replaced
	loaded  *Config    // of rules
	notes   []string   // warnings about the file as a text
	custom  customKinds

	unresolved bool // the API server did not answer about custom

	changed  chan struct{} // the rules changed
	warnings atomic.Pointer[[]string]
	failed   atomic.Bool // the last discovery
	broken   atomic.Bool // the last file
	failing  sync.Map    // of rules whose last query failed, by path
	queries  atomic.Uint64
}

// New makes a Server without rules. Run discovers its metrics.
func New(cfg ServerConfig, deps Deps) *Server {
	cfg.Refresh = cmp.Or(cfg.Refresh, time.Second)
	deps.Discover = cmp.Or(deps.Discover, 30*time.Second)
	s := &Server{cfg: cfg, deps: deps, changed: make(chan struct{}, 1)}
	s.rules.Store(&RuleSet{})
	s.index.Store(&index{})
	return s
}

// Load replaces the rules by those of a file. A file with mistakes changes nothing, unless
// it is the first one: then the rules without mistakes are served. The error lists the
// mistakes.
func (s *Server) Load(b []byte) error {
	c, warnings, err := Parse(b)
	if err != nil {
		s.broken.Store(true)
		return err
	}
	s.loading.Lock()
	defer s.loading.Unlock()
	set, errs := Compile(&c, s.custom)
	set.Warnings = append(slices.Clone(warnings), set.Warnings...)
	err = errs.ToAggregate()
	s.broken.Store(err != nil)
	if err == nil || len(s.rules.Load().Rules) == 0 {
		s.loaded, s.notes = &c, warnings
		s.rules.Store(set)
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
	return err
}

// Run follows the file and discovers metrics until ctx is done.
func (s *Server) Run(ctx context.Context) {
	s.followFile(ctx)
	tick := time.NewTicker(s.deps.Discover)
	defer tick.Stop()
	for {
		s.Discover(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.changed:
		}
	}
}

// Discover updates the list of metrics. If the series of a rule cannot be read, the
// metrics that were known stay known.
func (s *Server) Discover(ctx context.Context) {
	s.followCustom(ctx)
	set := s.rules.Load()
	x, err := discover(ctx, set, s.deps.Series)
	if ctx.Err() != nil {
		return
	}
	if failed := err != nil; s.failed.Swap(failed) != failed {
		if failed {
			s.deps.Log.Warn("the series of the adapter's rules cannot be read", "err", err)
		} else {
			s.deps.Log.Info("the series of the adapter's rules can be read again")
		}
	}
	if old := s.index.Load(); err != nil {
		keep(x, old, set)
	}
	s.logWarnings(slices.Concat(set.Warnings, x.warnings), x.skipped)
	s.index.Store(x)
	s.cache.clear()
}

// keep copies the metrics of an older index whose rules are still there.
func keep(x, old *index, set *RuleSet) {
	for k, e := range old.entries {
		if _, ok := x.entries[k]; !ok && slices.Contains(set.Rules, e.rule) {
			x.entries[k] = e
		}
	}
	for k, e := range old.external {
		if _, ok := x.external[k]; !ok && slices.Contains(set.Rules, e.rule) {
			x.external[k] = e
		}
	}
}

// logWarnings logs the warnings that are new.
func (s *Server) logWarnings(warnings []string, skipped int) {
	if skipped > 0 {
		warnings = append(warnings, fmt.Sprintf("the rules make more than %d metrics: the others are not served; narrow their seriesQuery", maxMetrics))
	}
	var old []string
	if p := s.warnings.Swap(&warnings); p != nil {
		old = *p
	}
	for _, w := range warnings {
		if !slices.Contains(old, w) {
			s.deps.Log.Warn("adapter configuration", "warning", w)
		}
	}
}

// Listed is a metric that the API's discovery lists.
type Listed struct {
	Metric
	Namespaced bool // its objects have a namespace
}

// Metrics returns the metrics of objects, sorted. The list is shared: it is the same one
// until a discovery.
func (s *Server) Metrics() []Listed { return s.index.Load().listed() }

// ExternalMetrics returns the names of the external metrics, sorted.
func (s *Server) ExternalMetrics() []string {
	x := s.index.Load()
	out := make([]string, 0, len(x.external))
	for name := range x.external {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// HasExternal reports whether there is an external metric of this name.
func (s *Server) HasExternal(metric string) bool {
	_, ok := s.index.Load().external[metric]
	return ok
}

// Value is the metric of one object.
type Value struct {
	Name  string
	Value float64
	At    time.Time
}

// Values returns a metric of objects of one namespace; those without a value are left
// out. One query serves all requests for a metric and a namespace, as long as it is fresh.
func (s *Server) Values(ctx context.Context, metric string, o *Objects, now time.Time) ([]Value, error) {
	e, ok := s.index.Load().entries[Metric{o.Resource, metric}]
	if !ok {
		return nil, ErrUnknown
	}
	if len(o.Names) == 0 {
		return nil, nil
	}
	all := *o
	if e.batches {
		all.Names = nil
	}
	promql, label, err := e.rule.Query(e.series, &all)
	if err != nil {
		return nil, fmt.Errorf("metric %s: %w: %w", metric, ErrRequest, err)
	}
	r := s.query(ctx, e.rule, promql, now)
	if r.err != nil {
		return nil, fmt.Errorf("metric %s of the adapter's %s: %w", metric, e.rule.Path, r.err)
	}
	key := valuesKey{label: label, namespace: o.Namespace}
	if key.namespaceLabel, err = e.rule.mapping.label(namespaces); err != nil {
		key.namespace = "" // of a rule of cluster-scoped objects
	}
	values := r.by(key)
	out := make([]Value, 0, len(o.Names))
	for _, name := range o.Names {
		if v, ok := values[name]; ok {
			out = append(out, Value{name, v.Value, v.At})
		}
	}
	return out, nil
}

// query runs a query, or waits for its result. Failures are logged once per rule.
func (s *Server) query(ctx context.Context, r *Rule, promql string, now time.Time) *result {
	return s.cache.get(ctx, promql, now, s.cfg.Refresh, func(ctx context.Context) ([]Sample, error) {
		s.queries.Add(1)
		samples, err := s.deps.Query(ctx, promql, now)
		switch _, failed := s.failing.Load(r.Path); {
		case err != nil && !failed:
			s.failing.Store(r.Path, true)
			s.deps.Log.Warn("the query of an adapter rule fails", "rule", r.Path, "promql", excerpt.Of(promql, maxLogged), "err", err)
		case err == nil && failed:
			s.failing.Delete(r.Path)
			s.deps.Log.Info("the query of an adapter rule works again", "rule", r.Path)
		}
		return samples, err
	})
}

// maxLogged bounds a query in the log, in bytes.
const maxLogged = 500

// Queries returns the number of queries so far.
func (s *Server) Queries() uint64 { return s.queries.Load() }

// External returns the values of an external metric.
func (s *Server) External(ctx context.Context, metric, namespace string, selector kubelabels.Selector, now time.Time) ([]Sample, error) {
	e, ok := s.index.Load().external[metric]
	if !ok {
		return nil, ErrUnknown
	}
	promql, err := e.rule.ExternalQuery(e.series, namespace, selector)
	if err != nil {
		return nil, fmt.Errorf("metric %s: %w: %w", metric, ErrRequest, err)
	}
	r := s.query(ctx, e.rule, promql, now)
	if r.err != nil {
		return nil, fmt.Errorf("metric %s of the adapter's %s: %w", metric, e.rule.Path, r.err)
	}
	return slices.DeleteFunc(slices.Clone(r.samples), func(x Sample) bool { return math.IsNaN(x.Value) }), nil
}

// Broken reports whether the last file had mistakes.
func (s *Server) Broken() bool { return s.broken.Load() }

// Unreadable reports whether the last discovery failed.
func (s *Server) Unreadable() bool { return s.failed.Load() }

// Names returns the names of the series that the served metrics read, for the storage.
func (s *Server) Names() []string {
	x := s.index.Load()
	seen := map[string]bool{}
	for _, e := range x.entries {
		seen[e.series] = true
	}
	for _, e := range x.external {
		seen[e.series] = true
	}
	out := make([]string, 0, len(seen))
	for name := range seen {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

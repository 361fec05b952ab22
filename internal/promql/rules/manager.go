// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
)

// Engine evaluates queries; *engine.Engine is one.
type Engine interface {
	Instant(ctx context.Context, q engine.Query, at time.Time) (parser.Value, annotations.Annotations, error)
}

// Config holds the settings of a Manager. Zero values mean the defaults.
type Config struct {
	Interval time.Duration // of groups that give none, and the shortest; 1 s
	Label    string        // of a series with its namespace; "namespace"
}

// Deps are the collaborators of a Manager.
type Deps struct {
	Engine Engine
	Store  *Store
	// Reserved reports whether a metric is scraped, so that the rules of a namespace
	// may not record it. nil: none is.
	Reserved func(metric string) bool
	// Want is called with the metrics that the rules read, now and then. nil: no call.
	Want func(metrics ...string)
	// Report is called when the problem of a source changes; "" means none.
	Report func(source *Source, problem string)
	Log    *slog.Logger
	Now    func() time.Time // nil: time.Now
}

// Manager runs the rules of all sources.
type Manager struct {
	cfg  Config
	deps Deps

	changed chan struct{} // of length 1

	mu      sync.Mutex
	offered map[string]offer   // by the source's ID
	running map[string]*runner // by source and group; only settle and stopAll change it
	freed   uint64             // accepted versions that ended
	version uint64             // of the last Set
	list    metricList
}

// offer is a source as it was given.
type offer struct {
	source   *Source // the newest version that could be parsed
	accepted *Source // the version that runs; nil: none
	parse    string  // why the newest version could not be parsed, or why it was dropped
	problem  string  // as it was reported
	version  uint64  // Manager.version when it was set
	dropped  bool    // the newest version was refused, and is not in memory any more
	freed    uint64  // Manager.freed when it was dropped
}

// New makes a Manager.
func New(cfg Config, deps Deps) *Manager {
	cfg.Interval = max(cfg.Interval, time.Second)
	cfg.Label = cmp.Or(cfg.Label, "namespace")
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Report == nil {
		deps.Report = func(*Source, string) {}
	}
	if deps.Store != nil {
		deps.Store.label = cfg.Label
	}
	return &Manager{
		cfg: cfg, deps: deps, changed: make(chan struct{}, 1),
		offered: map[string]offer{}, running: map[string]*runner{},
	}
}

// LogProblems returns a Deps.Report that logs that a source is refused, or accepted again.
func LogProblems(log *slog.Logger) func(*Source, string) {
	return func(s *Source, problem string) {
		if problem == "" {
			log.Info("recording rules are valid again", "source", s.ID)
			return
		}
		log.Warn("recording rules refused; the last valid version, if any, stays in use", "source", s.ID, "err", problem)
	}
}

// Set adds or replaces a source. If err is not nil, the source could not be parsed; its
// last version keeps running.
func (m *Manager) Set(s *Source, err error) {
	m.mu.Lock()
	o := m.offered[s.ID]
	if err != nil {
		if o.source == nil {
			o.source = s // without groups
		}
		o.parse, o.dropped = excerpt.Of(err.Error(), maxProblem), false
	} else {
		o.source, o.parse, o.dropped = s, "", false
	}
	m.version++
	o.version = m.version
	m.offered[s.ID] = o
	m.mu.Unlock()
	m.notify()
}

// Remove ends a source's rules.
func (m *Manager) Remove(id string) {
	m.mu.Lock()
	if m.offered[id].accepted != nil {
		m.freed++
	}
	delete(m.offered, id)
	m.mu.Unlock()
	m.notify()
}

func (m *Manager) notify() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// The intervals of Run.
const (
	settleTime = 100 * time.Millisecond // between two calls of settle: many objects change at the start
	sweepEvery = 30 * time.Second
	// settleIdle bounds the part of a core that objects use which change all the time: the
	// pause is so many times as long as the call was.
	settleIdle = 4
)

// Run evaluates the rules until ctx is done.
func (m *Manager) Run(ctx context.Context) {
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	defer m.stopAll()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sweep.C:
			m.deps.Store.Sweep(m.deps.Now())
			m.want()
		case <-m.changed:
			began := time.Now()
			m.settle(ctx)
			m.want()
			select {
			case <-ctx.Done():
				return
			case <-time.After(max(settleTime, settleIdle*time.Since(began))):
			}
		}
	}
}

// settle decides which sources run, reports the problems that changed, and starts and
// stops groups. Tenants' rules make it slow, so that it does its work without the lock.
func (m *Manager) settle(ctx context.Context) {
	m.mu.Lock()
	offers, freed, ended := slices.Collect(maps.Values(m.offered)), m.freed, uint64(0)
	m.mu.Unlock()
	slices.SortFunc(offers, func(x, y offer) int { return compareSources(x.source, y.source) })
	a := newAcceptance(m.cfg.Label, m.deps.Reserved)
	var reports []offer
	for i := range offers {
		o := &offers[i]
		problem, before := o.parse, o.accepted
		if err := a.add(o.source); err == nil {
			o.accepted = o.source
		} else {
			problem = cmp.Or(problem, excerpt.Of(err.Error(), maxProblem))
			if o.accepted == o.source || o.accepted != nil && a.add(o.accepted) != nil {
				o.accepted = nil
			}
			if o.source.Namespace != "" {
				o.drop(problem, freed+ended)
			}
		}
		if before != nil && before != o.accepted {
			ended++
		}
		if problem != o.problem {
			o.problem = problem
			reports = append(reports, *o)
		}
	}
	started, stopped := m.compare(a.sources)
	m.mu.Lock()
	m.freed += ended
	for i := range offers {
		o := offers[i]
		now, ok := m.offered[o.source.ID]
		if !ok {
			continue
		}
		if now.version != o.version { // a newer version, which is settled next
			now.accepted, now.problem = o.accepted, o.problem
			o = now
		}
		m.offered[o.source.ID] = o
	}
	for key := range stopped {
		delete(m.running, key)
	}
	for key, g := range started {
		m.running[key] = m.start(ctx, g.source, g.group)
	}
	m.mu.Unlock()
	for _, r := range stopped {
		r.stop(m.deps.Now())
	}
	for i := range reports {
		m.deps.Report(reports[i].source, reports[i].problem)
	}
}

// maxProblem bounds the text of a problem, in bytes.
const maxProblem = 1000

// drop forgets a version that is refused, because tenants choose how many there are. The
// version that runs, if any, takes its place.
func (o *offer) drop(problem string, freed uint64) {
	s := o.source
	if o.source = o.accepted; o.source == nil {
		o.source = &Source{ID: s.ID, Namespace: s.Namespace, Created: s.Created}
	}
	o.parse, o.dropped, o.freed = problem, true, freed
}

// maxWaiting bounds the sources that Waiting returns.
const maxWaiting = 10

// Waiting returns the IDs of sources that were refused and dropped, and may be accepted now,
// because a version of a source has ended since: of each namespace the oldest, and at most
// maxWaiting. Set offers them again.
func (m *Manager) Waiting() (ids []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	oldest := map[string]*Source{}
	for _, o := range m.offered {
		s := o.source
		if first := oldest[s.Namespace]; o.dropped && o.freed != m.freed && (first == nil || compareSources(s, first) < 0) {
			oldest[s.Namespace] = s
		}
	}
	for _, s := range slices.SortedFunc(maps.Values(oldest), compareSources) {
		ids = append(ids, s.ID)
	}
	return ids[:min(len(ids), maxWaiting)]
}

// groupOf is a group of a source.
type groupOf struct {
	source *Source
	group  *Group
}

// compare returns the groups of the sources that do not run yet, and the running groups
// that are not theirs.
func (m *Manager) compare(sources []*Source) (started map[string]groupOf, stopped map[string]*runner) {
	started, stopped = map[string]groupOf{}, maps.Clone(m.running)
	for _, s := range sources {
		for i := range s.Groups {
			g := &s.Groups[i]
			key := s.ID + "\x00" + g.Name
			if r := m.running[key]; r != nil && r.source.Namespace == s.Namespace && (r.group == g || reflect.DeepEqual(stripped(r.group), stripped(g))) {
				delete(stopped, key)
			} else {
				started[key] = groupOf{s, g}
			}
		}
	}
	return started, stopped
}

// stripped returns a group without what was derived from its text.
func stripped(g *Group) Group {
	out := *g
	out.Rules = slices.Clone(g.Rules)
	for i := range out.Rules {
		out.Rules[i].selectors = nil
	}
	return out
}

func (m *Manager) stopAll() {
	m.mu.Lock()
	all := slices.Collect(maps.Values(m.running))
	clear(m.running)
	m.mu.Unlock()
	for _, r := range all {
		r.stop(m.deps.Now())
	}
}

// want tells which metrics the rules read.
func (m *Manager) want() {
	if m.deps.Want == nil {
		return
	}
	names := map[string]bool{}
	m.mu.Lock()
	for _, r := range m.running {
		for i := range r.group.Rules {
			for _, selector := range r.group.Rules[i].selectors {
				if j := slices.IndexFunc(selector, isName); j >= 0 {
					names[selector[j].Value] = true
				}
			}
		}
	}
	m.mu.Unlock()
	if len(names) > 0 {
		m.deps.Want(slices.Collect(maps.Keys(names))...)
	}
}

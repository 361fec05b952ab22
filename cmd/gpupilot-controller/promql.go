// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/prometheus/storage"

	"github.com/gpupilot/gpupilot/internal/base/gcpace"
	"github.com/gpupilot/gpupilot/internal/promql/api"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/internal/promql/past"
	"github.com/gpupilot/gpupilot/internal/promql/rules"
	"github.com/gpupilot/gpupilot/internal/promql/windows"
	"github.com/gpupilot/gpupilot/internal/serve/webui"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// promqlConfig holds the flags of PromQL over the windows.
type promqlConfig struct {
	ruleFiles   []string
	ruleObjects bool
}

func (c *promqlConfig) rows() []option {
	return []option{
		{"rule-files", &c.ruleFiles, "`files` with recording rules in Prometheus's format, separated by commas; the last part may be a pattern, such as /etc/rules/*.yaml; they are read again when they change", c.checkFiles},
		{"prometheus-rules", &c.ruleObjects, "evaluate the recording rules of PrometheusRules (monitoring.coreos.com), each limited to its namespace unless --query-namespaces trusts it; without the CRD this does nothing", nil},
	}
}

// ruleMemory is the memory of results of recording rules, in bytes.
const ruleMemory = 64 << 20

// queryTimeout ends a query of the HTTP API, waiting included. Answers must be read within
// 30 s.
const queryTimeout = 20 * time.Second

// querySamples returns how many samples of 16 bytes one query may hold at the same time.
// In a container with a limit of less than 640 MB, one query's are an eighth of it.
func querySamples(limit int64, limited bool) int {
	const most = 5_000_000
	if !limited {
		return most
	}
	return int(min(most, limit/8/16))
}

// promQL is PromQL over the windows: the engine, the HTTP API and recording rules.
type promQL struct {
	p       *program
	engine  *engine.Engine
	results *rules.Store
	rules   *rules.Manager
	objects *ruleObjects

	mu         sync.Mutex
	namespaces []string // of the series, at read
	read       time.Time
}

// makePromQL makes PromQL over the windows, if this replica has the role.
func (p *program) makePromQL() {
	if !p.cfg.has(roleQuery) {
		return
	}
	q := &promQL{p: p, results: rules.NewStore(p.cfg.window, ruleMemory)}
	q.engine = engine.New(engine.Config{
		Timeout: queryTimeout, MaxSamples: querySamples(gcpace.ContainerLimit()), Reserved: p.promqlSlots,
		Lookback: windows.DefaultLookback, SubqueryStep: max(p.cfg.interval, time.Second), Want: p.promstore.WantFor, Narrow: p.promstore.Narrow, Log: p.log,
	}, engine.Join(p.pastSeries(), q.results))
	q.objects = newRuleObjects(q)
	q.rules = rules.New(rules.Config{Interval: p.cfg.interval}, rules.Deps{
		Engine: q.engine, Store: q.results, Reserved: isScraped, Report: q.objects.report, Log: p.log,
		Want: func(names ...string) { p.promstore.Hold("rules", names) },
	})
	p.sources = append(p.sources, q.rules)
	p.registry.MustRegister(q.engine, q.rules)
	p.promql = q
}

// pastSeries returns the series of the windows, and their past of the history.
func (p *program) pastSeries() storage.Queryable {
	job, instance := p.promstore.OwnLabels()
	return past.New(past.Config{Lookback: windows.DefaultLookback, Job: job, Instance: instance},
		past.Deps{Recent: p.promstore, Minutes: p.history.store, Families: recorded()})
}

// run runs the rules.
func (q *promQL) run(g *group) {
	if q == nil {
		return
	}
	g.run(never(q.rules.Run))
	if len(q.p.cfg.promql.ruleFiles) > 0 {
		g.run(never(q.watchFiles))
	}
	if q.p.cfg.promql.ruleObjects {
		g.run(never(q.objects.watch))
	}
}

// signal evaluates a query signal over the windows. scope is the namespace that it is
// limited to; empty: none. The caller holds one of program.promqlSlots.
func (q *promQL) signal(ctx context.Context, scope, promql string) (series.Sample, error) {
	x := engine.Query{PromQL: promql, Payer: "query signals", Reserved: true, HasSlot: true, Timeout: q.p.cfg.prometheusTimeout, Lookback: q.p.cfg.prometheusMaxAge}
	if scope != "" {
		x.Payer, x.Namespaces = scope, []string{scope}
	}
	return q.engine.Number(ctx, x, time.Now())
}

// register adds the HTTP API to the page's address.
func (q *promQL) register(mux *http.ServeMux) {
	if q == nil {
		return
	}
	described := &metadata{own: q.p.registry, pages: q.p.scraper.Metadata}
	api.New(api.Deps{
		Engine: q.engine, Guard: q.guard, Rules: q.groups, Metadata: described.of, Window: q.p.cfg.window, Version: version, Log: q.p.log,
	}).Register(mux)
}

// guard authenticates requests as the page does.
func (q *promQL) guard(next func(http.ResponseWriter, *http.Request, api.Viewer)) http.HandlerFunc {
	return q.p.page.Guard(func(w http.ResponseWriter, r *http.Request, v webui.Viewer) {
		viewer, err := q.viewer(r.Context(), v)
		if err != nil {
			w.Header().Set("Retry-After", "1")
			http.Error(w, `{"status":"error","errorType":"unavailable","error":"the API server does not answer a check of the token's rights; try again"}`, http.StatusServiceUnavailable)
			return
		}
		next(w, r, viewer)
	})
}

// viewer returns which namespaces a viewer may read.
func (q *promQL) viewer(ctx context.Context, v webui.Viewer) (api.Viewer, error) {
	var out api.Viewer
	all, err := v.All(ctx)
	if all || err != nil {
		return out, err
	}
	out.Namespaces, out.Unknown, err = v.Readable(ctx, q.allNamespaces(time.Now()))
	if out.Namespaces == nil {
		out.Namespaces = []string{} // none, and not all
	}
	return out, err
}

// namespacesTTL is how long the list of the series' namespaces is used.
const namespacesTTL = 2 * time.Second

// allNamespaces returns the namespaces of the series.
func (q *promQL) allNamespaces(now time.Time) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now.Sub(q.read) >= namespacesTTL {
		q.namespaces = slices.Concat(q.p.promstore.Namespaces(), q.results.Namespaces())
		slices.Sort(q.namespaces)
		q.namespaces, q.read = slices.Compact(q.namespaces), now
	}
	return q.namespaces
}

// groups returns the groups of rules that a viewer may see.
func (q *promQL) groups(v api.Viewer) []api.RuleGroup {
	var out []api.RuleGroup
	for _, g := range q.rules.Groups() {
		if v.Namespaces != nil && !slices.Contains(v.Namespaces, g.Source.Namespace) {
			continue
		}
		x := api.RuleGroup{Name: g.Group.Name, File: g.Source.ID, Interval: g.Interval.Seconds(), Limit: g.Group.Limit, Rules: []api.Rule{}}
		for i := range g.Rules {
			s := &g.Rules[i]
			health := "ok"
			switch {
			case s.At.IsZero():
				health = "unknown"
			case s.Error != "":
				health = "err"
			}
			x.Rules = append(x.Rules, api.Rule{
				Name: s.Rule.Record, Query: s.Rule.Expr, Labels: s.Rule.Labels, Health: health, LastError: s.Error,
				EvaluationTime: s.Took.Seconds(), LastEvaluation: s.At, Type: "recording",
			})
			x.EvaluationTime += s.Took.Seconds()
			x.LastEvaluation = s.At
		}
		out = append(out, x)
	}
	return out
}

// querier returns the function that evaluates query signals: at the PromQL backend of
// --prometheus-url, else over the windows; nil if this replica has neither.
func (p *program) querier() (func(ctx context.Context, scope, promql string) (series.Sample, error), error) {
	if p.cfg.prometheus == "" {
		if !p.cfg.has(roleQuery) {
			return nil, nil
		}
		return func(ctx context.Context, scope, promql string) (series.Sample, error) { // p.promql is made after the controller
			return p.promql.signal(ctx, scope, promql)
		}, nil
	}
	c, err := p.backend()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, _, promql string) (series.Sample, error) { return c.Query(ctx, promql) }, nil
}

// checkFiles checks the patterns of --rule-files.
func (c *promqlConfig) checkFiles() error {
	var errs []error
	for _, pattern := range c.ruleFiles {
		if _, err := matchFiles(pattern); err != nil {
			errs = append(errs, fmt.Errorf("%q: %w", pattern, err))
		}
	}
	return errors.Join(errs...)
}

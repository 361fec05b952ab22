// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/prometheus/storage"

	"github.com/gpupilot/gpupilot/internal/autoscaler/kubeflags"
	"github.com/gpupilot/gpupilot/internal/base/gcpace"
	"github.com/gpupilot/gpupilot/internal/base/group"
	"github.com/gpupilot/gpupilot/internal/node/exposition"
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
	objects *rules.Objects
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
	q.rules = rules.New(rules.Config{Interval: p.cfg.interval}, rules.Deps{
		Engine: q.engine, Store: q.results, Reserved: windows.IsScraped, Report: rules.LogProblems(p.log), Log: p.log,
		Want: func(names ...string) { p.promstore.Hold("rules", names) },
	})
	q.objects = rules.NewObjects(rules.ObjectsConfig{
		Selector: kubeflags.Selector(p.cfg.operatorLabels), Trusted: p.cfg.trustsQueriesOf, Manager: q.rules, Check: q.engine.Selectors,
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
func (q *promQL) run(g *group.Group) {
	if q == nil {
		return
	}
	g.Run(group.Never(q.rules.Run))
	if patterns := q.p.cfg.promql.ruleFiles; len(patterns) > 0 {
		files := &rules.Files{Patterns: patterns, Manager: q.rules, Check: q.engine.Selectors, Log: q.p.log}
		g.Run(group.Never(files.Run))
	}
	if q.p.cfg.promql.ruleObjects {
		g.Run(group.Never(func(ctx context.Context) { q.p.clients.WatchInstalled(ctx, rules.PrometheusRule, q.objects) }))
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
	described := api.NewDescriptions(api.DescriptionsConfig{Own: q.p.registry, Agents: aboutAgents(), Pages: q.p.scraper.Metadata})
	guard := webui.NewQueries(q.p.page, func() []string { return slices.Concat(q.p.promstore.Namespaces(), q.results.Namespaces()) })
	api.New(api.Deps{
		Engine: q.engine, Guard: guard.Guard, Metadata: described.Of, Window: q.p.cfg.window, Version: version, Log: q.p.log,
		Rules: func(v api.Viewer) []api.RuleGroup { return api.GroupsFor(v, q.rules.Groups()) },
	}).Register(mux)
}

// aboutAgents describes the metrics of agents about themselves.
func aboutAgents() map[string]api.Metadata {
	out := map[string]api.Metadata{}
	for _, d := range exposition.Descriptions() {
		out[d.Name] = api.Metadata{Type: string(d.Type), Help: d.Help}
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
		if err := rules.CheckPattern(pattern); err != nil {
			errs = append(errs, fmt.Errorf("%q: %w", pattern, err))
		}
	}
	return errors.Join(errs...)
}

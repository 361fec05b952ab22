// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/autoscaler/kubeflags"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/base/gcpace"
	"github.com/gpupilot/gpupilot/internal/node/exposition"
	"github.com/gpupilot/gpupilot/internal/promql/api"
	"github.com/gpupilot/gpupilot/internal/promql/client"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/internal/promql/past"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
	"github.com/gpupilot/gpupilot/internal/promql/rules"
	"github.com/gpupilot/gpupilot/internal/promql/windows"
	"github.com/gpupilot/gpupilot/internal/serve/metricsapi"
	"github.com/gpupilot/gpupilot/internal/serve/webui"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

// querying evaluates PromQL. Without the role query it has a scheduler only, which asks
// --prometheus-url.
type querying struct {
	slots       *fair.Slots // of rules, signals and MetricQueries over the windows
	engine      *engine.Engine
	results     *rules.Store
	rules       *rules.Manager
	ruleObjects *rules.Objects
	scheduler   *queries.Scheduler
	sources     []metricsapi.Source // of custom metrics that are not built in
}

// ruleMemory is the memory of results of recording rules, in bytes.
const ruleMemory = 64 << 20

// queryTimeout ends a query of the HTTP API, waiting included. Answers must be read within
// 30 s.
const queryTimeout = 20 * time.Second

// makeEngine makes PromQL over the windows and their past, and the recording rules.
func (p *program) makeEngine() error {
	p.slots, p.results = fair.NewSlots(queries.ForWindows()), rules.NewStore(p.cfg.window, ruleMemory)
	job, instance := p.promstore.OwnLabels()
	minutes := past.New(past.Config{Lookback: windows.DefaultLookback, Job: job, Instance: instance},
		past.Deps{Recent: p.promstore, Minutes: p.history.Store, Families: recorded()})
	p.engine = engine.New(engine.Config{
		Timeout: queryTimeout, MaxSamples: engine.MaxSamples(gcpace.ContainerLimit()), Reserved: p.slots,
		Lookback: windows.DefaultLookback, SubqueryStep: max(p.cfg.interval, time.Second), Want: p.promstore.WantFor, Narrow: p.promstore.Narrow, Log: p.log, Programs: &p.programs,
		Incomplete: rules.Incomplete(p.results, func() []usage.Gap { return p.aggregates.Gaps() }),
	}, engine.Join(minutes, p.results))
	p.rules = rules.New(rules.Config{Interval: p.cfg.interval}, rules.Deps{
		Engine: p.engine, Store: p.results, Reserved: windows.IsScraped, Report: rules.LogProblems(p.log), Log: p.log,
		Want: func(names ...string) { p.promstore.Hold("rules", names) },
	})
	p.addLoop(p.rules.Run)
	p.sources = append(p.sources, p.rules)
	p.registry.MustRegister(p.engine, p.rules)
	if patterns := p.cfg.ruleFiles; len(patterns) > 0 {
		files := &rules.Files{Patterns: patterns, Manager: p.rules, Check: p.engine.Selectors, Log: p.log}
		p.addLoop(files.Run)
	}
	p.ruleObjects = rules.NewObjects(rules.ObjectsConfig{
		Selector: kubeflags.Selector(p.cfg.operatorLabels), Trusted: p.cfg.trustsQueriesOf, Manager: p.rules, Check: p.engine.Selectors,
		Read: p.clients.ReaderOf(rules.PrometheusRule),
	})
	if p.cfg.prometheusRules {
		p.addLoop(p.ruleObjects.Run)
		p.addLoop(func(ctx context.Context) { p.clients.WatchInstalled(ctx, rules.PrometheusRule, p.ruleObjects) })
	}
	return nil
}

// addQueryAPI adds Prometheus's HTTP API to the page's address.
func (p *program) addQueryAPI(mux *http.ServeMux) {
	agents := map[string]api.Metadata{}
	for _, d := range exposition.Descriptions() {
		agents[d.Name] = api.Metadata{Type: string(d.Type), Help: d.Help}
	}
	described := api.NewDescriptions(api.DescriptionsConfig{Own: p.registry, Agents: agents, Pages: p.scraper.Metadata})
	guard := webui.NewQueries(p.page, func() []string { return slices.Concat(p.promstore.Namespaces(), p.results.Namespaces()) })
	api.New(api.Deps{
		Engine: p.engine, Guard: guard.Guard, Metadata: described.Of, Window: p.cfg.window, Version: version, Log: p.log,
		Rules: func(v api.Viewer) []api.RuleGroup { return api.GroupsFor(v, p.rules.Groups()) },
	}).Register(mux)
}

// makeScheduler makes the scheduler of the queries of GPUAutoscalers and MetricQueries. It
// asks --prometheus-url, else the windows, if this replica has either.
func (p *program) makeScheduler() error {
	deps := queries.SchedulerDeps{Slots: p.slots, Log: p.log}
	switch {
	case p.cfg.prometheus != "":
		backend, err := p.cfg.backend(signalTimeout, 0)
		if err != nil {
			return err
		}
		deps.Slots = fair.NewSlots(queries.ForBackend())
		deps.Query = func(ctx context.Context, _, promql string) (series.Sample, error) { return backend.Query(ctx, promql) }
	case p.cfg.has(roleQuery):
		deps.Query = p.signal
	}
	p.scheduler = queries.NewScheduler(
		queries.SchedulerConfig{PerNamespace: p.cfg.queriesPerNamespace, Timeout: 30 * time.Second}, deps)
	p.addLoop(p.scheduler.Run)
	p.registry.MustRegister(p.scheduler)
	return nil
}

// signal evaluates a query over the windows. scope is the namespace that it is limited to;
// empty: none. The caller holds one of the slots.
func (p *program) signal(ctx context.Context, scope, promql string) (series.Sample, error) {
	x := engine.Query{PromQL: promql, Payer: fair.Operator("query signals"), Reserved: true, HasSlot: true, Timeout: signalTimeout, Lookback: p.cfg.prometheusMaxAge}
	if scope != "" {
		x.Payer, x.Namespaces = fair.Namespace(scope), []string{scope}
	}
	return p.engine.Number(ctx, x, time.Now())
}

// backend makes a client of --prometheus-url. maxAnswer bounds an answer in bytes; 0: the
// default.
func (c *config) backend(timeout time.Duration, maxAnswer int64) (*client.Client, error) {
	backend, err := client.New(client.Config{
		URL: c.prometheus, HTTPConfig: c.prometheusHTTP, Timeout: timeout, MaxAge: c.prometheusMaxAge, MaxAnswer: maxAnswer,
		UserAgent: "gpupilot-controller/" + version,
	})
	if err != nil {
		return nil, fmt.Errorf("--prometheus-url: %w", err)
	}
	return backend, nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/gpupilot/gpupilot/internal/autoscaler/index"
	"github.com/gpupilot/gpupilot/internal/autoscaler/kubeflags"
	"github.com/gpupilot/gpupilot/internal/autoscaler/meters"
	"github.com/gpupilot/gpupilot/internal/base/gcpace"
	"github.com/gpupilot/gpupilot/internal/base/meter"
	"github.com/gpupilot/gpupilot/internal/promql/backfill"
	"github.com/gpupilot/gpupilot/internal/promql/scope"
	"github.com/gpupilot/gpupilot/internal/promql/windows"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/scrape"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/trust"
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

// fleet is what is watched and scraped, and kept in memory.
type fleet struct {
	pods      *index.Pods
	objects   *index.Objects
	devices   *trust.Devices
	store     *series.Store
	agent     scrape.Doer // asks agents
	scraper   *scrape.Scraper
	history   *backfill.Keeper
	promstore *windows.Store
}

// makeWindows makes the windows in memory, and what fills them.
func (p *program) makeWindows() (err error) {
	p.pods = index.NewPods()
	p.objects = index.NewObjects(index.ObjectsConfig{Watch: p.clients.Watch, Live: p.clients.Live, Mapper: p.clients.Mapper, Log: p.log})
	p.addLoop(p.objects.Run)
	if p.cfg.workloadMetrics > 0 {
		p.addLoop(p.objects.WantOwners)
	}
	p.devices = trust.NewPricedDevices(p.cfg.resources, p.cfg.prices)
	p.store = series.New(series.Config{Span: p.cfg.window, Interval: p.cfg.interval, MaxBytes: kubeflags.Bytes(p.cfg.memory)})
	if memory, limited := gcpace.LimitHeap(); limited && p.store.Stats().Limit > memory*3/4 {
		p.log.Warn("--window-memory takes more than three quarters of the container's memory limit", "window-memory", p.store.Stats().Limit, "limit", memory)
	}
	deps := scrape.Deps{Client: scrape.NewClient(), Dial: (&net.Dialer{}).DialContext, Store: p.store, Log: p.log}
	if deps.Exporters, deps.Agents, err = scrape.ExporterClients(p.cfg.agentHTTP, p.cfg.agentToken, p.cfg.agentScheme == "https"); err != nil {
		return fmt.Errorf("--agent-http-config, --agent-token-file, --agent-scheme %s: %w", p.cfg.agentScheme, err)
	}
	p.agent = cmp.Or(deps.Agents, deps.Client)
	p.scraper = scrape.New(scrape.Config{Interval: p.cfg.interval}, deps)
	p.registry.MustRegister(meter.Func(p.scraper.Meter))
	if !p.cfg.has(roleScrape) {
		return nil
	}
	p.addLoop(p.scraper.Run)
	return nil
}

// trustsQueriesOf reports whether queries and rules of a namespace may read
// all namespaces.
func (c *config) trustsQueriesOf(namespace string) bool {
	return slices.Contains(c.queryNamespaces, namespace) || slices.Contains(c.queryNamespaces, scope.All)
}

// makeHistory makes the history of 14 days.
func (p *program) makeHistory() (err error) {
	cfg := backfill.Config{MaxBytes: kubeflags.Bytes(p.cfg.historyMemory), Dir: p.cfg.historyDir, Families: recorded(), Log: p.log}
	if p.cfg.prometheus != "" {
		if cfg.Backend, err = p.cfg.backend(backfill.Timeout, backfill.MaxAnswer); err != nil {
			return err
		}
	}
	p.history = backfill.New(cfg)
	p.addLoop(p.history.Run)
	p.registry.MustRegister(meter.Func(p.history.Meter))
	return nil
}

// recorded are the metrics of which the history keeps minutes.
func recorded() []history.Family {
	return slices.Concat(meters.Recorded(), usage.Recorded())
}

// makeSeries makes the storage that PromQL reads: the series of the windows.
func (p *program) makeSeries() error {
	instance, err := os.Hostname()
	if err != nil {
		instance = p.identity
	}
	p.promstore = windows.New(windows.Config{
		Interval: p.cfg.interval, Instance: instance,
		PodBytes: max(16<<20, kubeflags.Bytes(p.cfg.memory)/8), // not a part of --window-memory
	}, windows.Deps{
		Windows: p.store, Pods: p.pods, Holder: p.devices.Holder, Own: p.registry, Log: p.log,
		SetNames: func(all bool, names []string, of map[string][]string) {
			p.scraper.SetNames(page.NewNames(all, names, of))
		},
		Lines: func() int { return p.scraper.Lines() },
	})
	p.registry.MustRegister(p.promstore)
	if p.cfg.has(roleScrape) {
		p.addLoop(p.promstore.Run)
	}
	return nil
}

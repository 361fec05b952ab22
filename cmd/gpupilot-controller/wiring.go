// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
	apiregistration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/gpupilot/gpupilot/internal/autoscaler/access"
	"github.com/gpupilot/gpupilot/internal/autoscaler/certificates"
	"github.com/gpupilot/gpupilot/internal/autoscaler/controller"
	"github.com/gpupilot/gpupilot/internal/autoscaler/events"
	"github.com/gpupilot/gpupilot/internal/autoscaler/gpuexporter"
	"github.com/gpupilot/gpupilot/internal/autoscaler/index"
	"github.com/gpupilot/gpupilot/internal/autoscaler/kube"
	"github.com/gpupilot/gpupilot/internal/autoscaler/kubeflags"
	"github.com/gpupilot/gpupilot/internal/autoscaler/leader"
	"github.com/gpupilot/gpupilot/internal/autoscaler/nodehealth"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/base/connlimit"
	"github.com/gpupilot/gpupilot/internal/base/flags"
	"github.com/gpupilot/gpupilot/internal/base/gcpace"
	"github.com/gpupilot/gpupilot/internal/base/group"
	"github.com/gpupilot/gpupilot/internal/base/meter"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/promql/adapter"
	"github.com/gpupilot/gpupilot/internal/promql/client"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
	"github.com/gpupilot/gpupilot/internal/promql/scope"
	"github.com/gpupilot/gpupilot/internal/promql/windows"
	"github.com/gpupilot/gpupilot/internal/serve/metricquery"
	"github.com/gpupilot/gpupilot/internal/serve/metricsapi"
	"github.com/gpupilot/gpupilot/internal/serve/webui"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/podmonitor"
	"github.com/gpupilot/gpupilot/internal/window/scrape"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/trust"
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

// program holds all parts of the controller.
type program struct {
	cfg      *config
	log      *slog.Logger
	identity string

	clients     *kube.Clients
	pods        *index.Pods
	objects     *index.Objects
	sources     []metricsapi.Source // of custom metrics that are not built in
	store       *series.Store
	devices     *trust.Devices
	history     *historyKeeper
	exporter    scrape.Doer // asks agents and dcgm-exporters
	scraper     *scrape.Scraper
	promstore   *windows.Store
	control     *controller.Controller
	scaler      *target.Scaler
	fields      *usage.Fields
	values      *usage.Reader
	aggregates  *usage.Aggregator
	election    *leader.Election // nil: this replica always leads
	recorder    *events.Recorder
	exporters   *gpuexporter.Keeper
	owner       *kube.ServiceOwner  // of the Secret and the Lease
	certs       *certificates.Certs // nil: the certificate is in files
	adapter     *adapter.Server     // nil: no --adapter-config
	metrics     *metricsapi.Server  // nil: this replica lacks the role
	queries     *metricquery.Keeper
	promqlSlots *queries.Slots // of rules, signals and MetricQueries over the windows
	scheduler   *queries.Scheduler
	keda        keda
	promql      *promQL             // nil: this replica lacks the role
	podMonitors *podmonitor.Watcher // nil: without --pod-monitors
	page        *webui.Page
	access      *access.Reviewer // nil: no authentication
	conns       *connlimit.Limit // of --address
	registry    *prometheus.Registry
	term        leader.Term
	ready       atomic.Bool
}

// assemble makes and connects all parts. It starts nothing, and an unreachable API
// server is not an error.
func assemble(c *config, log *slog.Logger) (*program, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("find the host's name: %w", err)
	}
	p := &program{
		cfg: c, log: log, identity: host + "_" + uuid.NewString()[:8], registry: prometheus.NewRegistry(), conns: connlimit.New(maxConnections),
	}
	p.clients, err = kube.Connect(kube.Config{
		Kubeconfig: c.kubeconfig, UserAgent: "gpupilot-controller/" + version, GPUResources: c.resources, Log: log,
	})
	if err != nil {
		return nil, err
	}
	p.owner = kube.NewServiceOwner(p.clients.Set.CoreV1().Services(c.namespace), c.service)
	p.recorder = events.NewRecorder(p.clients.Set.EventsV1(), "gpupilot-controller", p.identity, log)
	p.pods = index.NewPods()
	p.makeObjects()
	p.store = series.New(series.Config{Span: c.window, Interval: c.interval, MaxBytes: kubeflags.Bytes(c.memory)})
	limitHeap(p.store.Stats().Limit, log)
	if p.exporter, err = c.exporterClient(); err != nil {
		return nil, err
	}
	deps := scrape.Deps{
		Client: scrape.NewClient(), Dial: (&net.Dialer{}).DialContext, Store: p.store, Log: log,
		Deliver: func(target string, at time.Time) { p.control.Deliver(target, at) },
	}
	if c.agentHTTP != "" {
		deps.Exporters = p.exporter // with credentials
	}
	p.scraper = scrape.New(scrape.Config{Interval: c.interval}, deps)
	if err := p.elect(); err != nil {
		return nil, err
	}
	p.makeHistory()
	if err := p.makeController(); err != nil {
		return nil, err
	}
	p.makePromStore()
	p.makePromQL()
	if err := p.makePage(); err != nil {
		return nil, err
	}
	if err := p.makeAdapter(); err != nil {
		return nil, err
	}
	if c.has(roleAPI) {
		if err := errors.Join(p.makeMetricsAPI(), p.makeKEDA()); err != nil {
			return nil, err
		}
	}
	p.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		meter.Func(p.scraper.Meter), meter.Func(p.meter),
	)
	return p, nil
}

// leaseName is the name of the Lease whose holder writes.
const leaseName = "gpupilot-controller"

func (p *program) elect() (err error) {
	if !p.cfg.has(roleDecide) {
		return nil
	}
	p.election, err = leader.New(leader.Config{
		Leases: p.clients.Set.CoordinationV1(), Namespace: p.cfg.namespace, Name: leaseName, Identity: p.identity,
		Owner: p.owner, Changed: p.leadershipChanged, Log: p.log,
	})
	return err
}

// leading reports whether this replica may write.
func (p *program) leading() bool {
	if p.election == nil {
		return p.cfg.has(roleDecide)
	}
	return p.election.Leading()
}

func (p *program) leader() string {
	switch {
	case p.election != nil:
		return p.election.Leader()
	case p.cfg.has(roleDecide):
		return p.identity
	}
	return ""
}

func (p *program) leadershipChanged(leading bool) {
	p.control.LeadershipChanged()
	if leading {
		if p.podMonitors != nil {
			p.podMonitors.ReportAgain()
		}
		p.term.Begin()
	} else {
		p.term.End()
	}
}

func (p *program) makeController() error {
	agents, err := kubeflags.Selectors(p.cfg.agents)
	if err != nil {
		return err
	}
	dcgm, err := kubeflags.Selectors(p.cfg.dcgm)
	if err != nil {
		return err
	}
	scope, err := scope.New(scope.Config{Label: p.cfg.queryNamespaceLabel, Trusted: p.cfg.queryNamespaces})
	if err != nil {
		return err
	}
	where := discovery.Config{
		Agents: agents, AgentNamespace: p.cfg.agentsIn, DCGM: dcgm, DCGMNamespaces: p.cfg.dcgmIn, ExporterScheme: p.cfg.agentScheme,
		PodNetworks: flags.Networks(p.cfg.podCIDRs), HostNetworkPods: p.cfg.hostNetworkPods, Gateways: p.cfg.prometheus == "",
	}
	if p.cfg.podMonitors && p.cfg.has(roleScrape) {
		p.podMonitors = p.makePodMonitors()
		where.PodMonitors = p.podMonitors
	}
	if err := p.makeScheduler(); err != nil {
		return err
	}
	p.devices = trust.NewDevices(p.cfg.resources)
	p.makeUsage()
	scraping := &discovery.Scraping{Scraper: p.scraper, Store: p.store}
	cfg := controller.Config{
		Version: version, Tick: p.cfg.interval, MaxAge: gpu.MaxAge(p.cfg.interval),
		Discovery: where,
	}
	deps := controller.Deps{
		Client: p.clients.Client, Live: p.clients.Live, Pods: p.pods, Scaler: p.scaler, Store: p.store, Devices: p.devices, Fields: p.fields,
		Watch: p.clients.Watch, AwaitInstalled: p.clients.AwaitInstalled,
		Queries: p.scheduler, LimitQuery: scope.Limit,
		HoldSeries: func(names []string) { p.promstore.Hold("gateways", names) }, // it is made after the controller
		Scrape:     scraping.Sync, States: scraping.States,
		Leading: p.leading, Leader: p.leader, Metrics: p.registry, Log: p.log,
		Minutes: p.history.recorder,
		Record:  func(e controller.Event) { p.recorder.Event(e.About, e.Kind, e.Reason, e.Action, e.Note) },
	}
	if p.cfg.keda.address != "" && p.cfg.has(roleAPI) {
		p.keda.objects = p.makeScaledObjects()
		deps.ScaledObjectChanged = p.keda.objects.Changed
	}
	p.control = controller.New(cfg, deps)
	if p.podMonitors != nil {
		p.podMonitors.Changed = p.control.PodMonitorsChanged
	}
	p.queries = p.makeMetricQueries(scope.Limit)
	p.exporters = p.makeExporters()
	p.pods.OnChange(p.podChanged)
	return nil
}

// makeScheduler makes the scheduler of the queries of GPUAutoscalers and MetricQueries.
func (p *program) makeScheduler() error {
	query, err := p.querier()
	if err != nil {
		return err
	}
	p.promqlSlots = queries.NewSlots(queries.ForWindows())
	slots := p.promqlSlots
	if p.cfg.prometheus != "" {
		slots = queries.NewSlots(queries.ForBackend())
	}
	p.scheduler = queries.NewScheduler(
		queries.SchedulerConfig{PerNamespace: p.cfg.queriesPerNamespace, Timeout: max(30*time.Second, p.cfg.prometheusTimeout)},
		queries.SchedulerDeps{Query: query, Slots: slots, Log: p.log},
	)
	p.registry.MustRegister(p.scheduler)
	return nil
}

// makeUsage makes what knows the fields and the GPUs in use.
func (p *program) makeUsage() {
	p.fields, p.scaler = usage.NewFields(), target.NewScaler(p.clients.Client)
	maxAge := gpu.MaxAge(p.cfg.interval)
	p.values = usage.NewReader(usage.Deps{
		Store: p.store, Pods: p.pods, Devices: p.devices, Fields: p.fields, MaxAge: maxAge,
		PodsOf: p.podsOf, TargetOf: p.scaler.PodsOf,
	})
	p.aggregates = usage.NewAggregator(usage.AggregatorConfig{MaxGroups: p.cfg.workloadMetrics, MaxAge: maxAge}, usage.AggregatorDeps{
		Store: p.store, Pods: p.pods, Devices: p.devices, Fields: p.fields, WorkloadOf: p.workloadOf, Minutes: p.history.recorder,
	})
	p.registry.MustRegister(p.aggregates)
}

// backend makes the client of --prometheus-url.
func (p *program) backend() (*client.Client, error) {
	c, err := client.New(client.Config{
		URL: p.cfg.prometheus, HTTPConfig: p.cfg.prometheusHTTP, Timeout: p.cfg.prometheusTimeout, MaxAge: p.cfg.prometheusMaxAge,
		UserAgent: "gpupilot-controller/" + version,
	})
	if err != nil {
		return nil, fmt.Errorf("--prometheus-url: %w", err)
	}
	return c, nil
}

// nodeHealth makes the keeper of the nodes' condition.
func (p *program) nodeHealth() *nodehealth.Keeper {
	return nodehealth.New(nodehealth.Config{
		Agents: func() []nodehealth.Agent {
			targets := p.control.Agents()
			agents := make([]nodehealth.Agent, 0, len(targets))
			for i := range targets {
				agents = append(agents, nodehealth.Agent{Name: targets[i].Name, Node: targets[i].Labels.Node, URL: targets[i].URL})
			}
			return agents
		},
		Ask: func(ctx context.Context, agent url.URL) (*gpu.NodeHealth, error) {
			return scrape.ReadHealth(ctx, p.exporter, agent)
		},
		Live: p.clients.Live, Client: p.clients.Client, Log: p.log,
		Record: func(node *corev1.ObjectReference, eventType, reason, note string) {
			p.recorder.Event(*node, eventType, reason, "Observe", note)
		},
	})
}

// exporterClient makes the HTTP client for agents and dcgm-exporters.
func (c *config) exporterClient() (scrape.Doer, error) {
	if c.agentHTTP == "" {
		return scrape.NewClient(), nil
	}
	client, err := scrape.NewConfiguredClient(c.agentHTTP, c.agentScheme == "https")
	if err != nil {
		return nil, fmt.Errorf("--agent-http-config, with --agent-scheme %s: %w", c.agentScheme, err)
	}
	return client, nil
}

func (p *program) makeMetricsAPI() (err error) {
	c := p.cfg
	cfg := metricsapi.Config{
		BindAddress: c.metricsAddress, Port: c.securePort, CertFile: c.certFile, KeyFile: c.keyFile,
		Kubeconfig: c.kubeconfig, MaxAge: gpu.MaxAge(c.interval), RateWindow: rateWindow, Window: c.window, Version: version, Log: p.log,
	}
	if c.certFile == "" {
		p.certs = certificates.New(certificates.Config{
			Secrets: p.clients.Set.CoreV1().Secrets(c.namespace), Name: c.service + "-tls",
			DNSNames: certificates.ServiceNames(c.service, c.namespace), Owner: p.owner, Leads: p.leading, Log: p.log,
		})
		cfg.Cert = p.certs
	}
	deps := metricsapi.Deps{Pods: p.values, Statistics: p.values, Names: p.fields.Names, Objects: p.objects, Sources: p.sources}
	if c.external.enabled {
		deps.External = p.externalMetrics()
	}
	if cfg.Delegates, err = p.makeDelegates(); err != nil {
		return err
	}
	for _, d := range cfg.Delegates {
		deps.Sources = append(slices.Clip(deps.Sources), d)
	}
	p.metrics, err = metricsapi.New(cfg, deps)
	if err != nil {
		return fmt.Errorf("--secure-port %d: %w", c.securePort, err)
	}
	return nil
}

// rateWindow is series.Config's default for the span of a counter's rate.
const rateWindow = 15 * time.Second

// meter collects the metrics that have no room of their own.
func (p *program) meter(to meter.Sink) {
	to.Gauge("gpupilot_pods_watched", "Pods that are watched.", float64(p.pods.Len()))
	to.Counter("gpupilot_events_lost_total", "Events that could not be written.", float64(p.recorder.Dropped()))
	to.Gauge("gpupilot_page_connections", "Open connections of --address.", float64(p.conns.Open()))
	to.Counter("gpupilot_page_connections_closed_total", "Connections closed to make room: the oldest of the address with the most.", float64(p.conns.Closed()))
}

// run runs all parts until ctx is done or one of them fails.
func (p *program) run(ctx context.Context, l net.Listener) error {
	g := group.New(ctx)
	g.Run(func(ctx context.Context) error { return webui.Serve(ctx, p.conns.Of(l), p.handler(), p.log) })
	g.Run(group.Never(gcpace.Run))
	g.Run(p.clients.Run)
	g.Run(p.watch)
	p.promql.run(g)
	if p.podMonitors != nil {
		g.Run(group.Never(func(ctx context.Context) { p.clients.WatchInstalled(ctx, podmonitor.Kind, p.podMonitors) }))
	}
	g.Run(group.Never(p.objects.Run))
	if p.cfg.workloadMetrics > 0 {
		g.Run(group.Never(p.objects.WantOwners))
	}
	g.Run(group.Never(p.recorder.Run))
	g.Run(group.Never(p.scheduler.Run))
	g.Run(group.Never(p.queries.Run))
	g.Run(group.Never(func(ctx context.Context) { events.NewNotices(p.recorder.EventOnce).Run(ctx, p.notices) }))
	g.Run(group.Never(p.aggregates.Run))
	g.Run(group.Never(p.keepHistory))
	if p.cfg.has(roleScrape) {
		g.Run(group.Never(p.scraper.Run))
		g.Run(group.Never(p.promstore.Run))
	}
	if p.certs != nil {
		g.Run(p.certs.Run)
	}
	if p.adapter != nil {
		g.Run(group.Never(p.adapter.Run))
	}
	if p.metrics != nil {
		g.Run(p.metrics.Run)
	}
	if err := errors.Join(p.runKEDA(ctx, g), p.lead(g)); err != nil {
		return err
	}
	return g.Wait(p.log)
}

// watch fills the index of pods, and then runs the controller.
func (p *program) watch(ctx context.Context) error {
	if p.clients.Watch(ctx, &corev1.Pod{}, p.pods) != nil {
		return nil //nolint:nilerr // the only error is that of ctx, which is how this ends
	}
	p.log.Info("watching pods", "pods", p.pods.Len())
	return p.control.Run(ctx, func() { p.ready.Store(true) })
}

// lead starts the tasks of the leader, which run while this replica leads.
func (p *program) lead(g *group.Group) error {
	g.Run(group.Never(func(ctx context.Context) { _, _ = p.owner.References(ctx) })) // an error is repeated, and told, where they are used
	if p.certs != nil && p.cfg.apiServices {
		client, err := apiregistration.NewForConfig(p.clients.Config)
		if err != nil {
			return fmt.Errorf("make a client for APIServices: %w", err)
		}
		cfg := certificates.APIServiceConfig{
			APIs: p.cfg.metricsAPIs(), Namespace: p.cfg.namespace, Service: p.cfg.service, Port: p.cfg.servicePort,
			CreateIfMissing: true, Owner: p.owner, Labels: map[string]string{"app.kubernetes.io/managed-by": "gpupilot-controller"},
		}
		g.Run(group.Never(func(ctx context.Context) {
			p.term.Run(ctx, func(ctx context.Context) {
				certificates.KeepAPIServices(ctx, client.APIServices(), cfg, p.certs, p.log)
			})
		}))
	}
	p.leadExporters(g)
	if p.cfg.nodeHealth && p.cfg.has(roleDecide) {
		g.Run(group.Never(func(ctx context.Context) { p.term.Run(ctx, p.nodeHealth().Run) }))
	}
	if p.election == nil {
		if p.leading() || !p.cfg.has(roleDecide) {
			p.term.Begin()
		}
		return nil
	}
	g.Run(group.Never(p.election.Run))
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/aspect"
	"github.com/gpupilot/gpupilot/internal/autoscaler/controller"
	"github.com/gpupilot/gpupilot/internal/autoscaler/events"
	"github.com/gpupilot/gpupilot/internal/autoscaler/gpuexporter"
	"github.com/gpupilot/gpupilot/internal/autoscaler/kube"
	"github.com/gpupilot/gpupilot/internal/autoscaler/kubeflags"
	"github.com/gpupilot/gpupilot/internal/autoscaler/nodehealth"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/base/flags"
	"github.com/gpupilot/gpupilot/internal/base/weight"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/node/exposition"
	"github.com/gpupilot/gpupilot/internal/promql/scope"
	"github.com/gpupilot/gpupilot/internal/serve/kedascaler"
	"github.com/gpupilot/gpupilot/internal/serve/metricquery"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/scrape"
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

// deciding is what decides, and what reads values for it and for others.
type deciding struct {
	writes        *fair.Slots // of requests that scale and that write statuses
	scaler        *target.Scaler
	fields        *usage.Fields
	programs      weight.Counts
	values        *usage.Reader
	aggregates    *usage.Aggregator
	limit         *scope.Scope        // of tenants' queries
	scaledObjects *kedascaler.Objects // nil: the KEDA scaler is not served
	control       *controller.Controller
	queries       *metricquery.Keeper
}

// makeUsage makes what knows the fields and the GPUs in use.
func (p *program) makeUsage() {
	p.writes = fair.NewSlots(fair.ForWrites())
	p.fields, p.scaler = usage.NewFields(), target.NewScaler(p.clients.Scale)
	maxAge := gpu.MaxAge(p.cfg.interval)
	p.values = usage.NewReader(usage.Deps{
		Store: p.store, Pods: p.pods, Devices: p.devices, Fields: p.fields, MaxAge: maxAge, TargetOf: p.scaler.PodsOf,
		PodsOf: func(ctx context.Context, dst []*corev1.Pod, r schema.GroupResource, namespace, name string) ([]*corev1.Pod, error) {
			return p.objects.PodsOf(ctx, p.pods, dst, r, types.NamespacedName{Namespace: namespace, Name: name})
		},
	})
	p.aggregates = usage.NewAggregator(usage.AggregatorConfig{MaxGroups: p.cfg.workloadMetrics, MaxAge: maxAge}, usage.AggregatorDeps{
		Store: p.store, Pods: p.pods, Devices: p.devices, Fields: p.fields, Minutes: p.history.Recorder,
		WorkloadOf: func(pod *corev1.Pod) (kind, name string, ok bool) {
			w, ok := p.objects.WorkloadOf(p.pods, pod)
			return w.Kind, w.Name, ok
		},
	})
	p.addLoop(p.aggregates.Run)
	p.registry.MustRegister(p.aggregates)
}

// discovery returns what is scraped.
func (p *program) discovery() (where discovery.Config, err error) {
	where = discovery.Config{
		AgentNamespace: p.cfg.agentsIn, DCGMNamespaces: p.cfg.dcgmIn, ExporterScheme: p.cfg.agentScheme,
		PodNetworks: flags.Networks(p.cfg.podCIDRs), HostNetworkPods: p.cfg.hostNetworkPods, Gateways: p.cfg.prometheus == "",
	}
	if where.Agents, err = kubeflags.Selectors(p.cfg.agents); err != nil {
		return where, err
	}
	where.DCGM, err = kubeflags.Selectors(p.cfg.dcgm)
	return where, err
}

// makeController makes the controller of the GPUAutoscalers.
func (p *program) makeController() error {
	where, err := p.discovery()
	if err != nil {
		return err
	}
	if p.limit, err = scope.New(scope.Config{Label: p.cfg.queryNamespaceLabel, Trusted: p.cfg.queryNamespaces}); err != nil {
		return err
	}
	p.makeUsage()
	scraping := &discovery.Scraping{Scraper: p.scraper, Store: p.store}
	deps := controller.Deps{
		Deps: aspect.Deps{
			Client: p.clients.Client, Writes: p.writes, Leading: p.leading, Log: p.log, Store: p.store, Devices: p.devices, Past: p.history.Store,
		},
		Live: p.clients.ScaleLive, Pods: p.pods, Scaler: p.scaler, Fields: p.fields,
		Watch: p.clients.Watch, AwaitInstalled: p.clients.AwaitInstalled,
		Queries: p.scheduler, LimitQuery: p.limitQuery, Programs: &p.programs,
		HoldSeries: func(names []string) { p.promstore.Hold("gateways", names) },
		Scrape:     scraping.Sync, States: scraping.States, Described: p.scraper.Described,
		Leader: p.leader, Metrics: p.registry, Minutes: p.history.Recorder,
		Record: func(e controller.Event) { p.recorder.Event(e.About, e.Kind, e.Reason, e.Action, e.Note) },
	}
	if p.cfg.keda.address != "" && p.cfg.has(roleAPI) {
		p.scaledObjects = kedascaler.NewObjects(p.clients.Live, func(about corev1.ObjectReference, reason string) {
			p.recorder.Event(about, corev1.EventTypeWarning, "TriggerRefused", "Observe", reason)
		})
		deps.ScaledObjectChanged = p.scaledObjects.Changed
	}
	p.control = controller.New(controller.Config{
		Version: version, Tick: p.cfg.interval, MaxAge: gpu.MaxAge(p.cfg.interval), Discovery: where,
		CustomMetrics: p.cfg.apiServices, ExternalMetrics: p.cfg.external.enabled,
	}, deps)
	p.addTask(p.watch)
	return nil
}

// watch fills the index of pods, and then runs the controller.
func (p *program) watch(ctx context.Context) error {
	if p.clients.Watch(ctx, &corev1.Pod{}, p.pods) != nil {
		return nil //nolint:nilerr // the only error is that of ctx, which is how this ends
	}
	p.log.Info("watching pods", "pods", p.pods.Len())
	return p.control.Run(ctx, func() { p.ready.Store(true) })
}

// limitQuery is scope.Scope.Limit, and counts what is above its weight.
func (p *program) limitQuery(namespace, promql string) (limited string, trusted bool, err error) {
	limited, trusted, err = p.limit.Limit(namespace, promql)
	return limited, trusted, p.programs.Note(err)
}

// makeMetricQueries makes the keeper of the MetricQueries.
func (p *program) makeMetricQueries() error {
	p.queries = metricquery.New(metricquery.Config{Every: p.cfg.interval}, metricquery.Deps{
		Watch: p.clients.Watch, AwaitInstalled: p.clients.AwaitInstalled, Client: p.clients.Client, Writes: p.writes,
		Queries: p.scheduler, LimitQuery: p.limitQuery, Desired: p.desiredReplicas,
		Workload: func(ctx context.Context, namespace string, q *v1alpha1.MetricQueryGPU) (metricquery.Sample, error) {
			return metricquery.ReadWorkload(ctx, p.values, namespace, q)
		},
		Leading: p.leading, Log: p.log,
	})
	p.addLoop(p.queries.Run)
	return nil
}

// desiredReplicas returns what a GPUAutoscaler decided last.
func (p *program) desiredReplicas(namespace, autoscaler string) (metricquery.Sample, error) {
	d, err := p.control.DesiredReplicas(namespace, autoscaler)
	return metricquery.Sample{Value: float64(d.Replicas), At: d.At}, err
}

// notices returns the problems that this replica writes about. Where replicas evaluate
// rules and have no leader, each writes: equal Events are one.
func (p *program) notices() (list []events.Notice) {
	if p.ruleObjects != nil && (p.leading() || !p.cfg.has(roleDecide)) {
		for _, x := range p.ruleObjects.Problems() {
			list = append(list, events.Notice{About: x.About, Reason: x.Reason, Note: x.Text})
		}
	}
	if !p.leading() {
		return list
	}
	list = append(list, events.OfPods(p.pods.Unread(), "LabelsNotRead", kube.UnreadNote)...)
	for _, x := range p.queries.Problems() {
		list = append(list, events.Notice{
			About: corev1.ObjectReference{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "MetricQuery", Namespace: x.Namespace, Name: x.Name, UID: x.UID,
			},
			Reason: x.Reason, Note: x.Message,
		})
	}
	return list
}

// lead makes what only the leader runs.
func (p *program) lead() error {
	exporters := p.makeExporters()
	p.pods.OnChange(exporters.PodChanged)
	p.addLoop(exporters.Watch)
	p.addLeaderLoop(exporters.Run)
	if p.cfg.nodeHealth {
		p.addLeaderLoop(p.makeNodeHealth().Run)
	}
	return nil
}

// makeExporters makes the keeper of GPUExporters.
func (p *program) makeExporters() *gpuexporter.Keeper {
	return gpuexporter.New(gpuexporter.Settings{Namespace: p.cfg.agentsIn, Image: p.cfg.agentImage, Tokens: p.cfg.agentToken != ""}, gpuexporter.Deps{
		Live: p.clients.Live, Client: p.clients.Client, Installed: p.clients.Installed,
		AwaitInstalled: p.clients.AwaitInstalled, Watch: p.clients.Watch,
		Pods:   func(s labels.Selector) []*corev1.Pod { return p.pods.Select(p.cfg.agentsIn, s) },
		Agents: func() []gpuexporter.Agent { return gpuexporter.AgentsOf(p.control.Agents()) },
		Ask: func(ctx context.Context, agent url.URL) (*gpuexporter.Report, error) {
			return gpuexporter.ReadReport(ctx, p.agent, agent)
		},
		Parse: exposition.CheckCollectors, Defaults: exposition.DefaultCSV,
		Record: func(e gpuexporter.Event) { p.recorder.Event(e.About, e.Kind, e.Reason, "Reconcile", e.Note) },
		Log:    p.log,
	})
}

// makeNodeHealth makes the keeper of the nodes' condition.
func (p *program) makeNodeHealth() *nodehealth.Keeper {
	return nodehealth.New(nodehealth.Config{
		Agents: func() []nodehealth.Agent { return nodehealth.AgentsOf(p.control.Agents()) },
		Ask: func(ctx context.Context, agent url.URL) (*gpu.NodeHealth, error) {
			return scrape.ReadHealth(ctx, p.agent, agent)
		},
		Live: p.clients.Live, Client: p.clients.Client, Log: p.log,
		Record: func(node *corev1.ObjectReference, eventType, reason, note string) {
			p.recorder.Event(*node, eventType, reason, "Observe", note)
		},
	})
}

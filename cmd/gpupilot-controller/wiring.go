// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/gpupilot/gpupilot/internal/autoscaler/events"
	"github.com/gpupilot/gpupilot/internal/autoscaler/kube"
	"github.com/gpupilot/gpupilot/internal/autoscaler/leader"
	"github.com/gpupilot/gpupilot/internal/base/gcpace"
	"github.com/gpupilot/gpupilot/internal/base/listen"
	"github.com/gpupilot/gpupilot/internal/base/meter"
)

// program is the assembled controller.
type program struct {
	cfg      *config
	log      *slog.Logger
	identity string
	registry *prometheus.Registry

	cluster
	fleet
	querying
	deciding
	serving

	tasks []func(context.Context) error // each runs in a goroutine
	ready atomic.Bool
}

// cluster is the API server, and this replica among others.
type cluster struct {
	clients  *kube.Clients
	owner    *kube.Owner // of the Secret and the Lease
	recorder *events.Recorder
	election *leader.Election // nil: this replica never writes
	term     leader.Term
}

// assemble makes and connects the parts, each after those that it reads. It starts
// nothing, and an unreachable API server is not an error. A part whose role is absent is
// not made.
func assemble(c *config, log *slog.Logger) (*program, error) {
	p := &program{cfg: c, log: log, registry: prometheus.NewRegistry()}
	steps := []func() error{p.connect, p.makeWindows, p.makeHistory, p.makeSeries}
	if c.has(roleQuery) {
		steps = append(steps, p.makeEngine)
	}
	steps = append(steps, p.makeScheduler, p.makeController, p.makeMetricQueries)
	if c.has(roleDecide) {
		steps = append(steps, p.lead)
	}
	steps = append(steps, p.makePage)
	if c.has(roleAPI) {
		steps = append(steps, p.makeAdapter, p.makeMetricsAPI)
		if c.keda.address != "" {
			steps = append(steps, p.makeKEDA)
		}
	}
	for _, step := range append(steps, p.subscribe) {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// connect makes the clients of the API server, and the parts that only they need.
func (p *program) connect() error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("find the host's name: %w", err)
	}
	p.identity = host + "_" + uuid.NewString()[:8]
	p.clients, err = kube.Connect(kube.Config{
		Kubeconfig: p.cfg.kubeconfig, UserAgent: "gpupilot-controller/" + version, GPUResources: p.cfg.resources, Trusted: p.cfg.trustsQueriesOf, Log: p.log,
	})
	if err != nil {
		return err
	}
	p.owner = kube.NewServiceOwner(p.clients.Set.CoreV1().Services(p.cfg.namespace), p.cfg.service)
	p.recorder = events.NewRecorder(p.clients.Set.EventsV1(), "gpupilot-controller", p.identity, p.log)
	p.addTask(p.clients.Run)
	p.addLoop(gcpace.Run)
	p.addLoop(p.recorder.Run)
	p.addLoop(func(ctx context.Context) { _, _ = p.owner.References(ctx) }) // an error is repeated, and told, where they are used
	p.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if !p.cfg.has(roleDecide) {
		p.term.Begin() // the APIServices are written without an election
		return nil
	}
	p.election, err = leader.New(leader.Config{
		Leases: p.clients.Leases, Namespace: p.cfg.namespace, Name: leaseName, Identity: p.identity,
		Owner: p.owner, Log: p.log,
	})
	return err
}

// leaseName is the name of the Lease whose holder writes.
const leaseName = "gpupilot-controller"

// leading reports whether this replica may write.
func (p *program) leading() bool { return p.election != nil && p.election.Leading() }

// leader returns the identity of the replica that writes; empty: this replica has no part
// in the election.
func (p *program) leader() string {
	if p.election == nil {
		return ""
	}
	return p.election.Leader()
}

// subscribe tells parts of events in the parts that were made before them.
func (p *program) subscribe() error {
	p.scraper.OnDeliver(p.control.Deliver)
	p.pods.OnChange(p.control.PodChanged)
	p.pods.OnChange(p.promstore.PodChanged)
	if p.election != nil {
		p.election.OnChange(p.leadershipChanged)
		p.addLoop(p.election.Run)
	}
	p.addLoop(func(ctx context.Context) { events.NewNotices(p.recorder.EventOnce).Run(ctx, p.notices) })
	p.registry.MustRegister(meter.Func(p.meter))
	return nil
}

func (p *program) leadershipChanged(leading bool) {
	p.control.LeadershipChanged()
	p.term.Set(leading)
}

// meter collects the metrics that have no room of their own.
func (p *program) meter(to meter.Sink) {
	to.Gauge("gpupilot_pods_watched", "Pods that are watched.", float64(p.pods.Len()))
	to.Gauge("gpupilot_pods_unread_labels", "Pods whose labels are too many or too large to be read. No selector selects them.", float64(len(p.pods.Unread())))
	to.Counter("gpupilot_events_lost_total", "Events that could not be written.", float64(p.recorder.Dropped()))
	p.programs.Each(func(kind string, n uint64) {
		to.Counter("gpupilot_programs_refused_total", "Formulas, queries, regular expressions, schedules and selectors that were refused because they cost too much.", float64(n), "kind", kind)
	})
	to.Gauge("gpupilot_page_connections", "Open connections of --address.", float64(p.conns.Open()))
	to.Counter("gpupilot_page_connections_closed_total", "Connections closed to make room: the oldest of the address with the most.", float64(p.conns.Closed()))
}

// addTask adds a task, whose error ends the program.
func (p *program) addTask(run func(context.Context) error) { p.tasks = append(p.tasks, run) }

func (p *program) addLoop(run func(context.Context)) { p.addTask(never(run)) }

// addLeaderLoop adds a loop that runs while this replica leads.
func (p *program) addLeaderLoop(run func(context.Context)) {
	p.addLoop(func(ctx context.Context) { p.term.Run(ctx, run) })
}

// run runs all parts until ctx is done or one of them fails.
func (p *program) run(ctx context.Context, l net.Listener) error {
	g := newGroup(ctx)
	handler := p.page.CheckHosts(p.mux, p.cfg.pageHosts)
	g.run(func(ctx context.Context) error { return listen.Serve(ctx, p.conns.Of(l), handler, pageTimeouts, p.log) })
	for _, task := range p.tasks {
		g.run(task)
	}
	return g.wait(p.log)
}

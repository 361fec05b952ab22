// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/buildinfo"
	"github.com/gpupilot/gpupilot/internal/base/listen"
	"github.com/gpupilot/gpupilot/internal/base/regularfile"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/gpu/sim"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
	"github.com/gpupilot/gpupilot/internal/node/agent"
	"github.com/gpupilot/gpupilot/internal/node/apiwatch"
	"github.com/gpupilot/gpupilot/internal/node/exposition"
	"github.com/gpupilot/gpupilot/internal/node/hpcjobs"
	"github.com/gpupilot/gpupilot/internal/node/podres"
	"github.com/gpupilot/gpupilot/internal/node/tokenreview"
)

// program is the assembled agent.
type program struct {
	agent   *agent.Agent
	room    *listen.Room            // of the clients
	handler http.Handler            // of the agent, with --auth
	loops   []func(context.Context) // of the agent and of the sources that it reads
	close   func()
}

// assembly is a program whose parts are being wired.
type assembly struct {
	*config
	program
	deps agent.Deps
	api  apiServer
	log  *slog.Logger
}

// apiServer is the access to the API server.
type apiServer struct {
	client *apiwatch.Client // nil: no flag needs it, or err
	err    error            // why there is no client
	node   *apiwatch.Node   // the node's name in the API
}

// assemble wires the agent. fail ends the program.
func (c *config) assemble(ctx context.Context, reader gpu.Reader, fail func(error), log *slog.Logger) (*program, error) {
	profile, err := names.ParseProfile(c.profile)
	if err != nil {
		return nil, err
	}
	selection, err := agent.ParseSelection(c.devices)
	if err != nil {
		return nil, err
	}
	a := &assembly{config: c, log: log, deps: agent.Deps{Reader: reader, Fail: fail, Log: log}}
	if simulated, ok := reader.(*sim.Reader); ok {
		a.deps.Push = simulated.Push()
	}
	if c.hostEngine == "" {
		a.deps.DriverVersion = vendorlib.ModuleVersion
	}
	a.deps.Bus = c.bus(os.Getenv("NVIDIA_VISIBLE_DEVICES"))
	a.close, a.room = func() {}, listen.New(agent.ClientLimits(c.maxScrapes))
	a.deps.Room = a.room
	if err := a.connect(); err != nil {
		return nil, err
	}
	source := c.source(profile, a.api.client, log)
	collectors, err := source.load(ctx)
	if err != nil {
		return nil, err
	}
	pages := c.exposition(profile, collectors)
	pages.Log = log
	if pages.Processes, err = c.addProcesses(&a.deps, log); err != nil {
		return nil, err
	}
	exporter := exposition.New(pages)
	a.deps.Metrics, a.deps.WantsHealth, a.deps.Lacking = exporter, exporter.WantsHealth, exporter.Lacking
	a.deps.Publish = func(s *gpu.Snapshot, st agent.Stats, now time.Time) {
		exporter.Update(s, exposition.Stats(st), now)
	}
	if err := a.addOwners(); err != nil {
		return nil, err
	}
	a.addPods()
	a.addJobs()
	switches, _ := agent.ParseSelection(c.switchDevices) // parseConfig has checked both
	cpus, _ := agent.ParseSelection(c.cpuDevices)
	a.agent = agent.New(agent.Config{
		Interval: c.interval(), Node: c.node(), Devices: selection, Switches: switches, CPUs: cpus,
		Fields: exporter.Fields(), Passed: exporter.Passed(), Version: pages.Version,
		RequireGPUs: c.requireGPUs, Pprof: c.pprof,
	}, a.deps)
	a.handler = a.agent.Handler()
	if c.auth == authToken {
		a.handler = tokenreview.New(a.api.client, log).Wrap(a.handler)
	}
	a.addLoop(a.agent.Run)
	a.addLoop(a.followRelease)
	a.addLoop(func(ctx context.Context) { a.followCollectors(ctx, source, exporter) })
	a.addLoop(func(ctx context.Context) { c.intervalSource(log).follow(ctx, a.agent.SetInterval) })
	return &a.program, nil
}

// connect makes the API server's client, where there is an API server.
func (a *assembly) connect() error {
	a.api.client, a.api.err = a.apiClient()
	if _, _, ok := configMapName(a.configMap); ok && a.api.err != nil {
		return fmt.Errorf("--configmap-data: %w", a.api.err)
	}
	if a.auth == authToken && a.api.err != nil {
		return fmt.Errorf("--auth %s: %w", a.auth, a.api.err)
	}
	a.api.node = a.apiNode(a.api.client, a.log)
	return nil
}

func (a *assembly) addLoop(run func(context.Context)) { a.loops = append(a.loops, run) }

// followRelease releases the GPUs at SIGUSR1, and reads them again at SIGHUP.
func (a *assembly) followRelease(ctx context.Context) {
	orders := make(chan os.Signal, 1)
	signal.Notify(orders, syscall.SIGUSR1, syscall.SIGHUP)
	defer signal.Stop(orders)
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-orders:
			if s == syscall.SIGUSR1 {
				a.agent.Release()
			} else {
				a.agent.Resume()
			}
		}
	}
}

// followCollectors applies changed collectors until ctx is done. SIGHUP reads
// them again.
func (a *assembly) followCollectors(ctx context.Context, source *collectorsSource, exporter *exposition.Exporter) {
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	defer signal.Stop(again)
	source.follow(ctx, again, func(r collectorsRead) {
		exporter.Reconfigure(r.Collectors, r.invalid)
		a.agent.SetFields(exporter.Fields(), exporter.Passed()...)
	}, exporter.ReloadFailed)
}

// exposition returns the configuration of the metrics pages.
func (c *config) exposition(p names.Profile, r collectorsRead) exposition.Config {
	labels, _ := c.labels.relabel() // parseConfig has checked them
	build := buildinfo.Read()
	ec := exposition.Config{
		Relabel: labels,
		Profile: p, Collectors: r.Collectors, InvalidLines: r.invalid,
		Hostname: c.node(), Kubernetes: c.kubernetes, Containers: c.wantsContainers(), OldNamespace: c.oldNamespace, VirtualGPUs: c.virtualGPUs,
		Pods: c.wantsPods(), PodUID: c.podUID, DashedModel: c.dashedModel, Further: c.exporterMetrics,
		ClockWindow: time.Duration(c.clockWindow) * time.Millisecond, XIDWindow: time.Duration(c.xidWindow) * time.Millisecond,
		Version: build.Version, Revision: build.Commit,
	}
	if c.noHostname {
		ec.Hostname = ""
	}
	return ec
}

// addOwners adds the sources of the devices' owners: the kubelet, or Docker.
func (a *assembly) addOwners() error {
	if a.kubernetes && a.podResources != "" {
		kubelet, err := podres.New(a.podResources, a.resourceNames...)
		if err != nil {
			return err
		}
		a.deps.Owners, a.deps.Offered = kubelet.Allocations, kubelet.Allocatable
		a.close = func() { _ = kubelet.Close() }
		if a.dra {
			a.addClaims(kubelet.WithClaims())
		}
		a.deps.Owners = seenBy(a.api.node, a.deps.Owners)
		a.addLoop(a.api.node.Run)
	}
	a.addContainers()
	return nil
}

// addClaims attributes the devices of resource claims, through the
// ResourceSlices of the node. Without access to the API server it logs a warning,
// and these devices have no owner.
func (a *assembly) addClaims(kubelet *podres.Client) {
	if a.api.err != nil {
		a.log.Warn("devices of resource claims are not attributed: cannot read ResourceSlices from the API server", "err", a.api.err)
		return
	}
	slices := apiwatch.NewSlices(a.api.client, podres.Driver, a.api.node, a.log)
	a.deps.Owners = func(ctx context.Context) ([]gpu.Allocation, error) {
		allocs, err := kubelet.Allocations(ctx)
		return slices.Resolve(allocs), err
	}
	a.addLoop(slices.Run)
}

// seenBy passes the pods that the kubelet lists to the node.
func seenBy(node *apiwatch.Node, owners func(context.Context) ([]gpu.Allocation, error)) func(context.Context) ([]gpu.Allocation, error) {
	return func(ctx context.Context) ([]gpu.Allocation, error) {
		allocs, err := owners(ctx)
		if err == nil {
			node.Saw(allocs)
		}
		return allocs, err
	}
}

// wantsPods reports whether a flag needs the API server's pods. Their names alone
// can be read without a service account.
func (c *config) wantsPods() bool {
	return c.kubernetes && (c.podLabels || c.podUID || c.processMetrics && c.hasAccount())
}

// addPods watches the node's pods if a flag needs them. Without access to the
// API server it logs a warning, and gpupilot_pod_watch_up is 0.
func (a *assembly) addPods() {
	if !a.wantsPods() {
		return
	}
	if a.api.err != nil {
		a.log.Warn("labels and UIDs of pods are missing: cannot reach the API server", "err", a.api.err)
	}
	pods := apiwatch.NewPods(a.api.client, a.api.err, apiwatch.PodsConfig{
		Node: a.api.node, Labels: a.podLabels, Allow: a.allowlist(), Log: a.log,
	})
	a.deps.Pods = pods.Pods
	a.addLoop(pods.Run)
}

// addJobs reads the files of HPC jobs if their directory is given.
func (a *assembly) addJobs() {
	if a.jobDir == "" {
		return
	}
	jobs := hpcjobs.New(a.jobDir, regularfile.New(regularfile.DefaultTimeout), a.log)
	a.deps.Jobs = jobs.Jobs
	a.addLoop(func(ctx context.Context) { jobs.Run(ctx, max(a.interval(), time.Second)) })
}

// apiNode returns the node under its name in the API. It asks the API server if
// the name is not given: in a pod, the hostname is the pod's name.
func (c *config) apiNode(client *apiwatch.Client, log *slog.Logger) *apiwatch.Node {
	if c.nodeName != "" || client == nil || !c.wantsPods() && !(c.kubernetes && c.dra) {
		return apiwatch.GivenNode(c.node())
	}
	return apiwatch.FindNode(client, log)
}

// apiClient returns a client of the API server; nil if no flag needs it.
func (c *config) apiClient() (*apiwatch.Client, error) {
	if _, _, ok := configMapName(c.configMap); !ok && !c.wantsPods() && !(c.kubernetes && c.dra) && c.auth != authToken {
		return nil, nil
	}
	conf, err := apiwatch.InCluster(os.Getenv, c.serviceAccount)
	if err != nil {
		return nil, err
	}
	return apiwatch.New(conf)
}

// SPDX-License-Identifier: Apache-2.0

// Command gpupilot-agent runs on a GPU node and serves what its GPUs do, and
// for whom, under dcgm-exporter's names.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/gpupilot/gpupilot/internal/agent"
	"github.com/gpupilot/gpupilot/internal/apiwatch"
	"github.com/gpupilot/gpupilot/internal/expo"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/gpu/nvml"
	"github.com/gpupilot/gpupilot/internal/gpu/sim"
	"github.com/gpupilot/gpupilot/internal/hpcjobs"
	"github.com/gpupilot/gpupilot/internal/podres"
	"github.com/gpupilot/gpupilot/internal/regularfile"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gpupilot-agent:", err)
		stop()
		os.Exit(1)
	}
}

// closeGrace is how long the GPU library may take to let go: a call that hangs
// cannot be cancelled, and must not keep the process alive.
const closeGrace = 500 * time.Millisecond

// run is the whole program. It logs to out and returns when ctx is done, or
// when it cannot start.
func run(ctx context.Context, args []string, out io.Writer) error {
	c, fs, err := parseConfig(args, os.Getenv)
	switch {
	case err != nil:
		return err
	case c.help:
		_, err := fmt.Fprintf(out, "gpupilot-agent serves what this node's GPUs do, and for whom.\n\nFlags [environment variables]:\n%s", fs.FlagUsages())
		return err
	case c.version:
		v, rev := build()
		_, err := fmt.Fprintln(out, "gpupilot-agent", v, rev)
		return err
	}
	if c.probe {
		return c.runProbe(ctx, out)
	}
	saveMemory(c.pprof)
	log := c.logger(out)
	c.logAdjusted(log)
	reader, err := c.reader(ctx, log)
	if err != nil {
		return err
	}
	defer closeWithin(reader, closeGrace)
	p, err := c.assemble(ctx, reader, log)
	if err != nil {
		return err
	}
	defer p.close()
	l, handler, err := c.listen(ctx, p.agent.Handler(), log)
	if err != nil {
		return err
	}
	c.logIgnored(reader.Backend(), log)
	log.Info("serving", "address", l.Addr().String(), "backend", reader.Backend(), "profile", c.profile, "interval", c.interval())
	ctx, cancel := context.WithCancel(ctx)
	var loops sync.WaitGroup
	for _, f := range p.loops {
		loops.Go(func() { f(ctx) })
	}
	err = agent.Serve(ctx, l, handler, c.timeouts(), log)
	cancel()
	waitWithin(&loops, closeGrace)
	return err
}

// waitWithin waits for goroutines, one of which may sit in a system call that
// does not return.
func waitWithin(loops *sync.WaitGroup, d time.Duration) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		loops.Wait()
	}()
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	select {
	case <-done:
	case <-timeout.C:
	}
}

// gcPercent lets the heap grow by half of what is in use, instead of by all of
// it: 2 MiB less RSS, and too little is allocated for the collections to cost.
const gcPercent = 50

// saveMemory makes what is not asked for cost no memory.
func saveMemory(profiles bool) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if !profiles {
		runtime.MemProfileRate = 0
	}
}

// program is what runs.
type program struct {
	agent *agent.Agent
	loops []func(context.Context) // the agent's, and those of what it is handed
	close func()
}

// assemble wires the agent.
func (c *config) assemble(ctx context.Context, reader gpu.Reader, log *slog.Logger) (*program, error) {
	profile, err := names.ParseProfile(c.profile)
	if err != nil {
		return nil, err
	}
	selection, err := agent.ParseSelection(c.devices)
	if err != nil {
		return nil, err
	}
	client, clientErr := c.apiServer()
	if _, _, ok := configMapName(c.configMap); ok && clientErr != nil {
		return nil, fmt.Errorf("--configmap-data: %w", clientErr)
	}
	source := c.source(profile, client, log)
	collectors, err := source.load(ctx)
	if err != nil {
		return nil, err
	}
	v, rev := build()
	deps := agent.Deps{Reader: reader, Log: log}
	pages := c.exposition(profile, collectors, v, rev)
	if pages.Processes, err = c.addProcesses(&deps, log); err != nil {
		return nil, err
	}
	exporter := expo.New(pages)
	deps.Metrics, deps.WantsHealth = exporter, exporter.WantsHealth
	deps.Publish = func(s *gpu.Snapshot, st agent.Stats, now time.Time) {
		exporter.Update(s, expo.Stats(st), now)
	}
	p := &program{close: func() {}}
	node := c.apiNode(client, log)
	if c.kubernetes && c.podResources != "" {
		kubelet, err := podres.New(c.podResources, c.resourceNames...)
		if err != nil {
			return nil, err
		}
		deps.Owners = kubelet.Allocations
		p.close = func() { _ = kubelet.Close() }
		if c.dra {
			c.addClaims(p, &deps, kubelet.WithClaims(), client, clientErr, node, log)
		}
		deps.Owners = seenBy(node, deps.Owners)
		p.loops = append(p.loops, node.Run)
	}
	c.addContainers(p, &deps, log)
	c.addPods(p, &deps, client, clientErr, node, log)
	if c.jobDir != "" {
		jobs := hpcjobs.New(c.jobDir, regularfile.New(regularfile.DefaultTimeout), log)
		deps.Jobs = jobs.Jobs
		p.loops = append(p.loops, func(ctx context.Context) { jobs.Run(ctx, max(c.interval(), time.Second)) })
	}
	switches, _ := agent.ParseSelection(c.switchDevices) // these were checked
	cpus, _ := agent.ParseSelection(c.cpuDevices)
	p.agent = agent.New(agent.Config{
		Interval: c.interval(), Node: c.node(), Devices: selection, Switches: switches, CPUs: cpus, Fields: exporter.Fields(), Version: v,
		MaxScrapes: c.maxScrapes, RequireGPUs: c.requireGPUs, Pprof: c.pprof,
	}, deps)
	p.loops = append(p.loops, p.agent.Run, func(ctx context.Context) {
		again := make(chan os.Signal, 1)
		signal.Notify(again, syscall.SIGHUP)
		defer signal.Stop(again)
		source.follow(ctx, again, func(r collectorsRead) {
			exporter.Reconfigure(r.Collectors, r.invalid)
			p.agent.SetFields(exporter.Fields())
		}, exporter.ReloadFailed)
	}, func(ctx context.Context) {
		c.intervalSource(log).follow(ctx, p.agent.SetInterval)
	})
	return p, nil
}

// exposition is what the pages look like.
func (c *config) exposition(p names.Profile, r collectorsRead, version, revision string) expo.Config {
	labels, _ := c.labels.relabel() // they were checked
	ec := expo.Config{
		Relabel: labels,
		Profile: p, Collectors: r.Collectors, InvalidLines: r.invalid,
		Hostname: c.node(), Kubernetes: c.kubernetes, Containers: c.wantsContainers(), OldNamespace: c.oldNamespace, VirtualGPUs: c.virtualGPUs,
		Pods: c.wantsPods(), PodUID: c.podUID, DashedModel: c.dashedModel, Self: c.exporterMetrics,
		ClockWindow: time.Duration(c.clockWindow) * time.Millisecond, XIDWindow: time.Duration(c.xidWindow) * time.Millisecond,
		Version: version, Revision: revision,
	}
	if c.noHostname {
		ec.Hostname = ""
	}
	return ec
}

// wantsPods says whether the API server is to be asked for pods. What only
// wants their names can do without.
func (c *config) wantsPods() bool {
	return c.kubernetes && (c.podLabels || c.podUID || c.processMetrics && c.hasAccount())
}

// addPods follows the node's pods where that is asked for. Without an account
// the rest works, and gpupilot_pod_watch_up says so.
func (c *config) addPods(p *program, deps *agent.Deps, client *apiwatch.Client, clientErr error, node *apiwatch.Node, log *slog.Logger) {
	if !c.wantsPods() {
		return
	}
	if clientErr != nil {
		log.Warn("pods' labels and UIDs are left out: the API server cannot be asked", "err", clientErr)
	}
	pods := apiwatch.NewPods(client, clientErr, apiwatch.PodsConfig{
		Node: node, Labels: c.podLabels, Allow: c.allowlist(), Log: log,
	})
	deps.Pods = pods.Pods
	p.loops = append(p.loops, pods.Run)
}

// addClaims has the devices of resource claims found in the ResourceSlices of
// the node. Without an account the claims' devices have no owner, and the log
// says so.
func (c *config) addClaims(p *program, deps *agent.Deps, kubelet *podres.Client, client *apiwatch.Client, clientErr error, node *apiwatch.Node, log *slog.Logger) {
	if clientErr != nil {
		log.Warn("devices of resource claims are not attributed: the API server cannot be asked for ResourceSlices", "err", clientErr)
		return
	}
	slices := apiwatch.NewSlices(client, podres.Driver, node, log)
	deps.Owners = func(ctx context.Context) ([]gpu.Allocation, error) {
		allocs, err := kubelet.Allocations(ctx)
		return slices.Resolve(allocs), err
	}
	p.loops = append(p.loops, slices.Run)
}

// apiNode is the node as the API server knows it. The hostname is only its label:
// in a pod it is the pod's name.
func (c *config) apiNode(client *apiwatch.Client, log *slog.Logger) *apiwatch.Node {
	if c.nodeName != "" || client == nil || !c.wantsPods() && !(c.kubernetes && c.dra) {
		return apiwatch.GivenNode(c.node())
	}
	return apiwatch.FindNode(client, log)
}

// seenBy tells the node which pods the kubelet lists.
func seenBy(node *apiwatch.Node, owners func(context.Context) ([]gpu.Allocation, error)) func(context.Context) ([]gpu.Allocation, error) {
	return func(ctx context.Context) ([]gpu.Allocation, error) {
		allocs, err := owners(ctx)
		if err == nil {
			node.Saw(allocs)
		}
		return allocs, err
	}
}

// apiServer makes a client of the API server where one of the flags wants it.
func (c *config) apiServer() (*apiwatch.Client, error) {
	if _, _, ok := configMapName(c.configMap); !ok && !c.wantsPods() && !(c.kubernetes && c.dra) {
		return nil, nil
	}
	conf, err := apiwatch.InCluster(os.Getenv, c.serviceAccount)
	if err != nil {
		return nil, err
	}
	return apiwatch.New(conf)
}

// reader opens the backend. auto insists on NVML's library, unless a host
// engine is given: whoever has no GPU at all should hear so at once, and one
// whose driver comes later need not.
func (c *config) reader(ctx context.Context, log *slog.Logger) (gpu.Reader, error) {
	if c.backend == "sim" {
		r, err := sim.New(sim.Config{GPUs: c.simGPUs, Model: c.simModel, Node: c.node(), StateFile: c.simState})
		if err != nil {
			return nil, fmt.Errorf("--sim-gpus, --sim-model, --sim-state: %w", err)
		}
		return r, nil
	}
	if c.wantsDCGM() {
		return c.dcgmReader(ctx, log)
	}
	if c.hostEngine != "" {
		log.Warn("the host engine is not asked: another backend is named", "backend", c.backend, "address", c.hostEngine)
	}
	r := nvml.New(nvml.Config{Library: c.nvmlLibrary, Log: log})
	if c.backend != "auto" {
		return r, nil
	}
	if !c.noValidate {
		if err := probe(ctx, r); errors.Is(err, gpu.ErrNoLibrary) {
			closeWithin(r, closeGrace)
			return nil, fmt.Errorf("--backend auto: %w; "+
				"give its path with --nvml-library, wait for it with --backend nvml, or simulate GPUs with --backend sim", err)
		}
	}
	return c.autoReader(r, log), nil
}

// probeTimeout is how long a start waits to hear that there is no library; a
// library that takes longer is there.
const probeTimeout = 5 * time.Second

func probe(ctx context.Context, r gpu.Reader) error {
	done := make(chan error, 1)
	go func() {
		_, err := r.Devices()
		done <- err
	}()
	timeout := time.NewTimer(probeTimeout)
	defer timeout.Stop()
	select {
	case err := <-done:
		return err
	case <-timeout.C:
	case <-ctx.Done():
	}
	return nil
}

func closeWithin(c io.Closer, d time.Duration) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Close() // nothing is left to do about it
	}()
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	select {
	case <-done:
	case <-timeout.C:
	}
}

func (c *config) interval() time.Duration {
	return time.Duration(c.intervalMillis) * time.Millisecond
}

func (c *config) node() string {
	if c.nodeName != "" {
		return c.nodeName
	}
	h, _ := os.Hostname() // without one, the label is left out
	return h
}

func (c *config) logger(out io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: slog.LevelInfo}
	if c.debug {
		o.Level = slog.LevelDebug
	}
	if c.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(out, o))
	}
	return slog.New(slog.NewTextHandler(out, o))
}

// version is set by the linker (-X main.version); otherwise the module's counts.
var version string

// build is the program's version and its source's revision.
func build() (v, revision string) {
	v, revision = version, "unknown"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return cmp.Or(v, "unknown"), revision
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value
		}
	}
	return cmp.Or(v, info.Main.Version, "unknown"), revision
}

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
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/gpupilot/gpupilot/internal/agent"
	"github.com/gpupilot/gpupilot/internal/expo"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/nvml"
	"github.com/gpupilot/gpupilot/internal/gpu/sim"
	"github.com/gpupilot/gpupilot/internal/podres"
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
	log := c.logger(out)
	reader, err := c.reader(ctx, log)
	if err != nil {
		return err
	}
	defer closeWithin(reader, closeGrace)
	a, closers, err := c.assemble(reader, log)
	if err != nil {
		return err
	}
	defer closers()
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.address)
	if err != nil {
		return fmt.Errorf("--address %s: %w", c.address, err)
	}
	log.Info("serving", "address", l.Addr().String(), "backend", reader.Backend(), "profile", c.profile, "interval", c.interval())
	ctx, cancel := context.WithCancel(ctx)
	var loop sync.WaitGroup
	loop.Go(func() { a.Run(ctx) })
	err = agent.Serve(ctx, l, a.Handler(), agent.Timeouts{Read: 10 * time.Second, Write: 30 * time.Second}, log)
	cancel()
	loop.Wait()
	return err
}

// assemble wires the agent; closers lets go of what it holds.
func (c *config) assemble(reader gpu.Reader, log *slog.Logger) (a *agent.Agent, closers func(), err error) {
	profile, err := expo.ParseProfile(c.profile)
	if err != nil {
		return nil, nil, err
	}
	collectors, invalid, err := c.loadCollectors(profile, log)
	if err != nil {
		return nil, nil, err
	}
	selection, err := agent.ParseSelection(c.devices)
	if err != nil {
		return nil, nil, err
	}
	v, rev := build()
	node := c.node()
	ec := expo.Config{
		Profile: profile, Collectors: collectors, InvalidLines: invalid,
		Hostname: node, Kubernetes: c.kubernetes, Version: v, Revision: rev,
	}
	if c.noHostname {
		ec.Hostname = ""
	}
	exporter := expo.New(ec)
	deps := agent.Deps{
		Reader: reader, Metrics: exporter, Log: log,
		Publish: func(s *gpu.Snapshot, st agent.Stats, now time.Time) {
			exporter.Update(s, expo.Stats(st), now)
		},
	}
	closers = func() {}
	if c.kubernetes {
		kubelet, err := podres.New(c.podResources, c.resourceNames...)
		if err != nil {
			return nil, nil, err
		}
		deps.Owners = kubelet.Allocations
		closers = func() { _ = kubelet.Close() }
	}
	return agent.New(agent.Config{
		Interval: c.interval(), Node: node, Devices: selection, Fields: exporter.Fields(), Version: v,
	}, deps), closers, nil
}

// loadCollectors reads the collectors file, or gives the profile's own.
func (c *config) loadCollectors(p expo.Profile, log *slog.Logger) (expo.Collectors, int, error) {
	if c.collectors == "" {
		return p.DefaultCollectors(), 0, nil
	}
	text, err := os.ReadFile(c.collectors)
	if errors.Is(err, os.ErrNotExist) && shipped(c.collectors) {
		// dcgm-exporter's image has these files; manifests written for it name them.
		log.Info("collectors file is not here, the built-in list is used", "file", c.collectors)
		if filepath.Base(c.collectors) == "1.x-compatibility-metrics.csv" {
			p = expo.Profile1x
		}
		return p.DefaultCollectors(), 0, nil
	}
	if err != nil {
		return expo.Collectors{}, 0, fmt.Errorf("--collectors: %w", err)
	}
	collectors, bad := expo.ParseCollectors(string(text))
	for _, e := range bad {
		log.Warn("line of the collectors file is left out", "file", c.collectors, "line", e.Line, "text", e.Text, "reason", e.Reason)
	}
	return collectors, len(bad), nil
}

// shipped says whether path is one of the files in dcgm-exporter's image.
func shipped(path string) bool {
	if filepath.Dir(path) != "/etc/dcgm-exporter" {
		return false
	}
	switch filepath.Base(path) {
	case "default-counters.csv", "dcp-metrics-included.csv", "1.x-compatibility-metrics.csv":
		return true
	}
	return false
}

// reader opens the backend. auto insists on NVML's library: whoever has no GPU
// at all should hear so at once, and one whose driver comes later need not.
func (c *config) reader(ctx context.Context, log *slog.Logger) (gpu.Reader, error) {
	if c.backend == "sim" {
		r, err := sim.New(sim.Config{GPUs: c.simGPUs, Model: c.simModel, Node: c.node(), StateFile: c.simState})
		if err != nil {
			return nil, fmt.Errorf("--sim-gpus, --sim-model, --sim-state: %w", err)
		}
		return r, nil
	}
	r := nvml.New(nvml.Config{Library: c.nvmlLibrary, Log: log})
	if c.backend == "auto" {
		if err := probe(ctx, r); errors.Is(err, gpu.ErrNoLibrary) {
			closeWithin(r, closeGrace)
			return nil, fmt.Errorf("--backend auto: %w; "+
				"give its path with --nvml-library, wait for it with --backend nvml, or simulate GPUs with --backend sim", err)
		}
	}
	return r, nil
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

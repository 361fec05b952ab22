// SPDX-License-Identifier: Apache-2.0

// Command gpupilot-agent runs on a GPU node. It serves metrics of its GPUs, with
// the pods that use them, under dcgm-exporter's names.
package main

import (
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

	"github.com/gpupilot/gpupilot/internal/base/buildinfo"
	"github.com/gpupilot/gpupilot/internal/base/flags"
	"github.com/gpupilot/gpupilot/internal/base/listen"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/nvml"
	"github.com/gpupilot/gpupilot/internal/gpu/sim"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

func main() {
	useOneCore(os.Getenv)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gpupilot-agent:", err)
		stop()
		os.Exit(1)
	}
}

// useOneCore lets Go code run on one core at a time, unless the environment has
// GOMAXPROCS. The runtime then wakes no further threads to look for work, which cost a
// sixth to a quarter of a collection each second. Calls of the GPU library do not count:
// while one of them blocks, Go code runs.
func useOneCore(getenv func(string) string) {
	if getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
}

// closeGrace is how long closing the GPU library may take. A hung call cannot be
// cancelled and must not keep the process alive.
const closeGrace = 500 * time.Millisecond

// run is the whole program. It logs to out. It returns when ctx is done, or if
// the program cannot start.
func run(ctx context.Context, args []string, out io.Writer) error {
	c, fs, err := parseConfig(args, os.Getenv)
	switch {
	case err != nil:
		return err
	case c.help:
		_, err := fmt.Fprintf(out, "gpupilot-agent serves metrics of this node's GPUs, with the pods that use them.\n\nFlags [environment variables]:\n%s", fs.FlagUsages())
		return err
	case c.version:
		_, err := fmt.Fprintln(out, "gpupilot-agent", buildinfo.Read())
		return err
	}
	if c.probe {
		return c.runProbe(out)
	}
	saveMemory(c.pprof)
	log := c.logger(out)
	c.logAdjusted(log)
	reader, err := c.reader(ctx, log)
	if err != nil {
		return err
	}
	defer closeWithin(reader, closeGrace)
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	p, err := c.assemble(ctx, reader, end, log)
	if err != nil {
		return err
	}
	defer p.close()
	l, handler, err := c.listen(ctx, p.room, p.handler, log)
	if err != nil {
		return err
	}
	c.logIgnored(reader.Backend(), log)
	log.Info("serving", "address", l.Addr().String(), "backend", reader.Backend(), "profile", c.profile, "interval", c.interval())
	var loops sync.WaitGroup
	for _, f := range p.loops {
		loops.Go(func() { f(ctx) })
	}
	err = listen.Serve(ctx, l, handler, c.timeouts(), log)
	end(nil)
	waitWithin(&loops, closeGrace)
	if cause := context.Cause(ctx); errors.Is(cause, gpu.ErrReplaced) {
		return cause
	}
	return err
}

// waitWithin waits for goroutines for at most d: one may be in a system call that
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

// gcPercent lets the heap grow by half of the memory in use, instead of doubling
// it. That saves 2 MiB of RSS; the agent allocates so little that the additional
// collections cost nothing.
const gcPercent = 50

// saveMemory tunes the Go runtime for a small heap.
func saveMemory(profiles bool) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if !profiles {
		runtime.MemProfileRate = 0
	}
}

// reader opens the backend. auto fails without NVML's library, unless a host
// engine is given: a user on a machine without GPUs gets an error at once. It
// does not fail without a driver, which can be loaded later: a driver that is being
// replaced may take its library along.
func (c *config) reader(ctx context.Context, log *slog.Logger) (gpu.Reader, error) {
	if c.backend == "sim" {
		r, err := sim.New(sim.Config{GPUs: c.simGPUs, Model: c.simModel, Node: c.node(), StateFile: c.simState, Push: c.simPush})
		if err != nil {
			return nil, fmt.Errorf("--sim-gpus, --sim-model, --sim-state, --sim-push: %w", err)
		}
		return r, nil
	}
	if c.wantsDCGM() {
		return c.dcgmReader(ctx, log)
	}
	if c.hostEngine != "" {
		log.Warn("--remote-hostengine-info has no effect with this backend", "backend", c.backend, "address", c.hostEngine)
	}
	r := nvml.New(nvml.Config{Library: c.nvmlLibrary, Log: log})
	if c.backend != "auto" {
		return r, nil
	}
	if !c.noValidate && !vendorlib.DriverAway() {
		if err := probe(ctx, r); errors.Is(err, gpu.ErrNoLibrary) {
			closeWithin(r, closeGrace)
			return nil, fmt.Errorf("--backend auto: %w; "+
				"give its path with --nvml-library, wait for it with --backend nvml, or simulate GPUs with --backend sim", err)
		}
	}
	return c.autoReader(r, log), nil
}

// probeTimeout is how long a start waits for the error that the library is
// missing. A library that takes longer exists.
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
		_ = c.Close() // the process ends in any case
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
	level := slog.LevelInfo
	if c.debug {
		level = slog.LevelDebug
	}
	return flags.Logger(out, c.logFormat, level)
}

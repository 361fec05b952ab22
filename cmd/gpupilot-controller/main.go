// SPDX-License-Identifier: Apache-2.0

// Command gpupilot-controller runs in the cluster: it reads agents and pods,
// keeps their last minutes in memory, serves them as custom.metrics.k8s.io, and
// sets the replicas of the workloads that a GPUAutoscaler names.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// version is set by the linker.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gpupilot-controller:", err)
		stop()
		os.Exit(1)
	}
}

// run is the whole program. It logs to out and returns when ctx is done, or
// when it cannot start.
func run(ctx context.Context, args []string, out io.Writer) error {
	c, fs, err := parseConfig(args, os.Getenv)
	switch {
	case err != nil:
		return err
	case c.help:
		_, err := fmt.Fprintf(out, "gpupilot-controller scales workloads by what their GPUs do.\n\nFlags [environment variables]:\n%s", fs.FlagUsages())
		return err
	case c.version:
		_, err := fmt.Fprintln(out, "gpupilot-controller", version)
		return err
	}
	log := c.logger(out)
	bridgeLogs(log)
	p, err := assemble(c, log)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.address)
	if err != nil {
		return fmt.Errorf("--address %s: %w", c.address, err)
	}
	log.Info("serving", "address", listener.Addr().String(), "identity", p.identity, "roles", c.roles, "version", version)
	return p.run(ctx, listener)
}

// endGrace is how long everything may take to end once it is asked to: the
// lease is given back, connections that are open are not waited for.
const endGrace = 1500 * time.Millisecond

// group runs goroutines until one of them fails or ctx is done.
type group struct {
	ctx    context.Context // the lifetime of what it runs
	cancel context.CancelCauseFunc
	done   chan struct{}
	n      int
}

func newGroup(ctx context.Context) *group {
	g := &group{done: make(chan struct{}, 16)}
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	return g
}

func (g *group) run(f func(ctx context.Context) error) {
	g.n++
	go func() {
		if err := f(g.ctx); err != nil && g.ctx.Err() == nil {
			g.cancel(err)
		}
		g.done <- struct{}{}
	}()
}

// wait returns why the group ended, when all have or endGrace after ctx.
func (g *group) wait(log *slog.Logger) error {
	<-g.ctx.Done()
	late := time.NewTimer(endGrace)
	defer late.Stop()
	for ; g.n > 0; g.n-- {
		select {
		case <-g.done:
		case <-late.C:
			log.Warn("ending without waiting any longer", "goroutines", g.n)
			return g.cause()
		}
	}
	return g.cause()
}

func (g *group) cause() error {
	if err := context.Cause(g.ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// serve answers on l until ctx is done.
func serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", l.Addr(), err)
	}
	return nil
}

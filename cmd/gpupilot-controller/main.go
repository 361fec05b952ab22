// SPDX-License-Identifier: Apache-2.0

// Command gpupilot-controller runs in the cluster: it scrapes agents and pods, keeps the
// last minutes in memory, serves them as custom.metrics.k8s.io, and sets the replicas of
// the targets of GPUAutoscalers.
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

	"github.com/gpupilot/gpupilot/internal/autoscaler/kube"
	"github.com/gpupilot/gpupilot/internal/base/buildinfo"
)

// version is what this program was built from.
var version = buildinfo.Read().Version

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gpupilot-controller:", err)
		stop()
		os.Exit(1)
	}
}

// run runs the program. It logs to out, and returns when ctx is done or the start fails.
func run(ctx context.Context, args []string, out io.Writer) error {
	c, fs, err := parseConfig(args, os.Getenv)
	switch {
	case err != nil:
		return err
	case c.help:
		_, err := fmt.Fprintf(out, "gpupilot-controller scales Kubernetes workloads by metrics of their GPUs and pods.\n\nFlags [environment variables]:\n%s", fs.FlagUsages())
		return err
	case c.version:
		_, err := fmt.Fprintln(out, "gpupilot-controller", buildinfo.Read())
		return err
	}
	log := c.logger(out)
	kube.BridgeLogs(log)
	if c.removeExporter != "" {
		return c.remove(ctx, log)
	}
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

// endGrace bounds the time of a shutdown, in which the lease is released. Open
// connections are closed without waiting.
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

// wait waits until all goroutines have ended, at most endGrace after ctx is done. It
// returns the error that ended the group.
func (g *group) wait(log *slog.Logger) error {
	<-g.ctx.Done()
	late := time.NewTimer(endGrace)
	defer late.Stop()
	for ; g.n > 0; g.n-- {
		select {
		case <-g.done:
		case <-late.C:
			log.Warn("goroutines did not end in time, exiting", "goroutines", g.n)
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

// serve serves HTTP on l until ctx is done.
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

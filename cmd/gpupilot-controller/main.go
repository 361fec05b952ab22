// SPDX-License-Identifier: Apache-2.0

// Command gpupilot-controller runs in the cluster: it scrapes agents and pods, keeps the
// last minutes in memory, serves them as custom.metrics.k8s.io, and sets the replicas of
// the targets of GPUAutoscalers.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpupilot/gpupilot/internal/autoscaler/certificates"
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
	if c.checked != "" {
		clients, err := kube.Connect(kube.Config{Kubeconfig: c.kubeconfig, UserAgent: "gpupilot-controller/" + version, Log: log})
		if err != nil {
			return err
		}
		return clients.Check(ctx, c.checked, certificates.Paths(c.apis())...)
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

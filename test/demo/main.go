// SPDX-License-Identifier: Apache-2.0

// Command demo shows the whole of GPUPilot on one machine: a real Kubernetes
// control plane, three simulated nodes with eight GPUs each, the real agent on
// each of them and the real controller. Two workloads serve the same load, one
// scaled by a GPUAutoscaler, the other by a plain HorizontalPodAutoscaler that
// reads GPUPilot's custom metrics. It prints events as they happen.
//
// Its settings are environment variables, as make passes them on:
//
//	DEMO_SECONDS=N  end N seconds after the load began, with a summary; exit code 0 if
//	                and only if both workloads went up to what the load needed and back
//	LOAD=FILE       replay a counts CSV (columns t_s and requests, plain or gzip)
//	LOAD=sine=…     a shape of gpupilot load, such as sine=0.1:1:60s, as shares of the peak
//	SPEED=n         n times as fast as it was recorded
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// errVerdict means that the demo ran but did not show what it should.
var errVerdict = errors.New("the demo did not show what it should")

func main() {
	// A reader that goes (make demo | head) must not kill us before we have
	// ended what we started.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Getenv, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run runs the demo.
func run(ctx context.Context, getenv func(string) string, out io.Writer) error {
	s, err := newScenario(getenv("DEMO_SECONDS"), getenv("LOAD"), getenv("SPEED"))
	if err != nil {
		return err
	}
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	d := newDemo(s.withChain(findPrometheus()), out, quit)
	defer d.close()
	if err := d.start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // Ctrl-C while it started
		}
		return err
	}
	if err := d.play(ctx); err != nil {
		return err
	}
	return d.finish(ctx.Err() != nil)
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/test/agentrig"
	"github.com/gpupilot/gpupilot/test/stack"
)

// fleetWriters is how many requests to the API server are on their way at once.
const fleetWriters = 16

// benchFleetController measures the controller itself: a real control plane has
// a Node and an agent's pod for each of the targets.
func benchFleetController(ctx context.Context, cfg config, out io.Writer) ([]Row, error) {
	sizes, err := fleetSizes(cfg.targets)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, n := range sizes {
		fmt.Fprintf(out, "fleet-controller: %d nodes, window of %v, load average %s\n", n, cfg.window, loadAverage())
		l, err := measureController(ctx, cfg, n, out)
		if err != nil {
			return nil, err
		}
		rows = append(rows, l.rows(fmt.Sprintf("controller, %d nodes", n), n)...)
	}
	return rows, nil
}

func measureController(ctx context.Context, cfg config, n int, out io.Writer) (*load, error) {
	server, err := startFleet(ctx, n)
	if err != nil {
		return nil, err
	}
	defer func() { _ = server.Stop() }()
	args := []string{"--window", cfg.window.String(), "--window-memory", strconv.Itoa(fleetMemory)}
	s, err := stack.Start(ctx, stack.Config{
		Hollow: true, NoController: true, ControllerArgs: args,
	})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if err := joinNodes(ctx, s, server, n); err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "fleet-controller: %d nodes have joined\n", n)
	if err := s.StartController(ctx); err != nil {
		return nil, err
	}
	if err := pause(ctx, cfg.window+30*time.Second); err != nil {
		return nil, err
	}
	pid := s.ControllerPID()
	l, err := observe(ctx, func() (count, error) { return controllerCount(ctx, s, pid) }, pid)
	if err != nil {
		return nil, err
	}
	l.Expected = float64(n) * fleetMeasured.Seconds()
	return l, controllerState(ctx, s, l, out)
}

// controllerCount is what the controller has counted.
func controllerCount(ctx context.Context, s *stack.Stack, pid int) (count, error) {
	cpu, err := agentrig.CPU(pid)
	if err != nil {
		return count{}, err
	}
	m, err := stack.Meters(ctx, s.ControllerURL)
	c := count{asked: m["gpupilot_scrapes_total"], cpu: cpu}
	for name, v := range m {
		if strings.HasPrefix(name, "gpupilot_scrape_failures_total{") {
			c.failed += v
		}
	}
	// The fields that the controller has a use for are fewer than the page's.
	if perPage := m["gpupilot_window_series"] / m["gpupilot_scrape_targets"]; perPage > 0 {
		c.stored = m["gpupilot_scrape_samples_total"] / perPage
	}
	return c, err
}

// controllerState completes what was measured.
func controllerState(ctx context.Context, s *stack.Stack, l *load, out io.Writer) error {
	m, err := stack.Meters(ctx, s.ControllerURL)
	if err != nil {
		return err
	}
	l.Short = int(m["gpupilot_window_short_targets"])
	l.Memory = m["gpupilot_window_memory_bytes"] / (1 << 20)
	fmt.Fprintf(out, "fleet-controller: %.0f targets, %.0f series, %.0f goroutines; MiB:", m["gpupilot_scrape_targets"], m["gpupilot_window_series"], m["go_goroutines"])
	for _, part := range []string{"heap_alloc", "heap_inuse", "heap_idle", "heap_released", "stack_inuse", "mspan_inuse", "gc_sys", "next_gc"} {
		fmt.Fprintf(out, " %s %.0f", part, m["go_memstats_"+part+"_bytes"]/(1<<20))
	}
	fmt.Fprintln(out)
	return nil
}

// joinNodes registers nodes and their agents' pods, as running.
func joinNodes(ctx context.Context, s *stack.Stack, server *agentrig.Agent, n int) error {
	at, err := netip.ParseAddrPort(strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		return err
	}
	if err := s.AwaitNamespace(ctx, stack.Namespace); err != nil {
		return err
	}
	var all sync.WaitGroup
	errs := make(chan error, fleetWriters)
	for w := range fleetWriters {
		all.Go(func() {
			for i := w; i < n; i += fleetWriters {
				agent := netip.AddrPortFrom(agentAddress(i), at.Port())
				if err := errors.Join(s.JoinHollow(ctx, fleetNode(i), fleetGPUs), s.StartHollowAgent(ctx, fleetNode(i), agent, func(string) {})); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(errs)
	return <-errs
}

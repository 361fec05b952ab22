// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/test/agentrig"
)

const (
	exporterScrapes = 2000 // of one program, as fast as it answers
	exporterLimit   = 10 * time.Second
	// exporterSettles is what a program has for its start before its collections are measured, for exporterIdle at a scrape
	// each 15 s, Prometheus's interval in dcgm-exporter's ServiceMonitor.
	exporterSettles, exporterIdle = 35 * time.Second, time.Minute
	exporterScrapeEvery           = 15 * time.Second
)

// benchExporter measures a dcgm-exporter and the agent on the same nodes: first scrapes, one program after the other, then
// collections, all programs at once, so that whatever else the machine does meets all of them.
func benchExporter(ctx context.Context, cfg config, out io.Writer) ([]Row, error) {
	if cfg.exporter == "" {
		fmt.Fprintln(out, "exporter: left out, without -exporter /path/to/dcgm-exporter")
		return nil, nil
	}
	var rows []Row
	for _, s := range shapes() {
		s.dcgm = true
		for _, p := range []agentrig.Config{{Binary: cfg.exporter, Foreign: true}, {}} {
			fmt.Fprintf(out, "exporter: %s, %s\n", s.name, programOf(p))
			n, err := startNode(ctx, cfg, s, p)
			if err != nil && p.Foreign { // an older release lacks a flag, or cannot be run here
				fmt.Fprintf(out, "exporter: %s: %v\n", s.name, err)
				continue
			}
			if err != nil {
				return nil, err
			}
			r, err := n.exporterRows(ctx, s.name+", "+programOf(p))
			if err = errors.Join(err, n.stop()); err != nil {
				return nil, err
			}
			rows = append(rows, r...)
		}
	}
	idle, err := benchCollections(ctx, cfg)
	return append(rows, idle...), err
}

func programOf(c agentrig.Config) string {
	switch {
	case c.Foreign:
		return "dcgm-exporter"
	case slices.Contains(c.Args, "nvml"):
		return "the agent on NVML"
	}
	return "the agent on DCGM"
}

func (n *node) exporterRows(ctx context.Context, name string) ([]Row, error) {
	page, err := n.Get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	idle, err := cpuPerSecond(ctx, n.Agent)
	if err != nil {
		return nil, err
	}
	before, err := n.CPU()
	if err != nil {
		return nil, err
	}
	var times []float64
	for until := time.Now().Add(exporterLimit); len(times) < exporterScrapes && time.Now().Before(until); {
		began := time.Now()
		if _, err := n.Get(ctx, "/metrics"); err != nil {
			return nil, err
		}
		times = append(times, ms(time.Since(began)))
	}
	after, err := n.CPU()
	rss, rssErr := n.RSS()
	if err := errors.Join(err, rssErr); err != nil {
		return nil, err
	}
	c := costOf(times, []float64{ms(after-before) / float64(len(times))})
	return []Row{
		figure(name+", a scrape, p50", c.p50, "ms"), figure("  p99", c.p99, "ms"), figure("  CPU", c.cpu, "ms"),
		figure("  CPU without scrapes", idle, "ms/s"), figure("  RSS", float64(rss)/(1<<20), "MiB"),
		figure("  series", float64(countSeries([]byte(page))), ""), figure("  page", float64(len(page))/1000, "kB"),
	}, nil
}

// benchCollections measures what collections cost, each 1, 5 and 30 s.
func benchCollections(ctx context.Context, cfg config) ([]Row, error) {
	var all sync.WaitGroup
	var rows []Row
	var errs []error
	for _, tick := range []time.Duration{time.Second, 5 * time.Second, 30 * time.Second} {
		for _, p := range []agentrig.Config{
			{Binary: cfg.exporter, Foreign: true}, {}, {Args: []string{"--backend", "nvml"}, Env: []string{"GPUPILOT_FAKE_NVML_POLL_MS=5000"}},
		} {
			s := shapes()[0]
			s.dcgm = len(p.Args) == 0
			name := fmt.Sprintf("collections each %v, %s, CPU", tick, programOf(p))
			p.Args = append(p.Args, "-c", strconv.FormatInt(tick.Milliseconds(), 10))
			at := len(rows)
			rows, errs = append(rows, Row{}), append(errs, nil)
			all.Go(func() {
				cpu, err := measureCollections(ctx, cfg, s, p)
				rows[at], errs[at] = figure(name, cpu, "ms/s"), err
			})
		}
	}
	all.Wait()
	return rows, errors.Join(errs...)
}

func measureCollections(ctx context.Context, cfg config, s shape, p agentrig.Config) (cpu float64, err error) {
	n, err := startNode(ctx, cfg, s, p)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	if err := pause(ctx, exporterSettles); err != nil {
		return 0, err
	}
	before, err := n.CPU()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	for time.Since(began) < exporterIdle {
		if err := pause(ctx, exporterScrapeEvery); err != nil {
			return 0, err
		}
		page, err := n.Get(ctx, "/metrics")
		if err == nil && !strings.Contains(page, "DCGM_FI_DEV_FB_USED{") {
			err = fmt.Errorf("a page without the fields: %.300q", page)
		}
		if err != nil {
			return 0, err
		}
	}
	after, err := n.CPU()
	return ms(after-before) / time.Since(began).Seconds(), err
}

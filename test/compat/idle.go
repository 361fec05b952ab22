// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

// scrapeEvery is Prometheus's usual interval in dcgm-exporter's ServiceMonitor.
const scrapeEvery = 15 * time.Second

// idleCase is a program that is left alone but for a scrape each scrapeEvery.
type idleCase struct {
	name string
	path string
	tick time.Duration
	env  []string
	cpu  time.Duration // that it took
	err  error
}

// idle measures what collections cost: all programs run at the same time, so
// that whatever else the machine does meets all of them.
func (h *harness) idle(ctx context.Context, out io.Writer) error {
	s := benchCases()[0]
	n, err := prepare(s, filepath.Join(h.dir, "idle"))
	if err != nil {
		return err
	}
	defer n.stop()
	var cases []*idleCase
	for _, tick := range []time.Duration{time.Second, 5 * time.Second, 30 * time.Second} {
		cases = append(cases,
			&idleCase{name: "theirs", path: h.cfg.exporter, tick: tick},
			&idleCase{name: "ours, DCGM", path: h.cfg.agent, tick: tick},
			&idleCase{name: "ours, NVML", path: h.cfg.agent, tick: tick, env: []string{"GPUPILOT_BACKEND=nvml", "GPUPILOT_FAKE_NVML_POLL_MS=5000"}},
		)
	}
	var all sync.WaitGroup
	for _, c := range cases {
		all.Go(func() { c.err = h.measureIdle(ctx, c, s, n) })
	}
	all.Wait()
	w := tabwriter.NewWriter(out, 2, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "collections each\tprogram\tCPU ms/s\t")
	var errs []error
	for _, c := range cases {
		fmt.Fprintf(w, "%s\t%s\t%.2f\t\n", c.tick, c.name, ms(c.cpu)/h.cfg.idle.Seconds())
		errs = append(errs, c.err)
	}
	return errors.Join(append(errs, w.Flush())...)
}

// settleIdle is how long a program has for its start: it is not measured.
const settleIdle = 35 * time.Second

func (h *harness) measureIdle(ctx context.Context, c *idleCase, s scenario, n *node) error {
	s.env = append(s.env, c.env...)
	args := append([]string{"-c", strconv.FormatInt(c.tick.Milliseconds(), 10), "-f", filepath.Join(n.dir, "collectors.csv")}, replaced(s.args, n.dir)...)
	p, err := h.start(ctx, c.path, args, s, n)
	if err != nil {
		return err
	}
	defer p.stop(syscall.SIGTERM)
	p.sleep(ctx, settleIdle)
	c.cpu, err = cpuOf(p.cmd.Process.Pid, func() error {
		end := time.Now().Add(h.cfg.idle)
		for time.Now().Before(end) {
			p.sleep(ctx, min(scrapeEvery, time.Until(end)))
			a, err := p.ask(ctx, request{path: "/metrics"})
			if err != nil {
				return fmt.Errorf("%s, %s: %w\n%s", c.name, c.tick, err, p.tail())
			}
			if !strings.Contains(a.body, "DCGM_FI_DEV_GPU_UTIL{") {
				return fmt.Errorf("%s, %s: /metrics answers %d without the fields; it said:\n%s", c.name, c.tick, a.status, p.tail())
			}
		}
		return ctx.Err()
	})
	return err
}

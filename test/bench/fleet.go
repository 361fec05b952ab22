// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/gcpace"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/scrape"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/test/agentrig"
)

const (
	barFleetCores  = 0.5 // of 10,000 targets, on the reference machine
	barFleetRSS    = 700 // MiB
	barFleetMissed = 0.1 // %: the measured time does not begin with a tick
	fleetMeasured  = 20 * time.Second
	fleetMemory    = 1 << 30 // bytes of --window-memory
	barFleetOfMost = 10000   // the bars are those of so many targets
)

// load is what scraping a fleet took while it was measured.
type load struct {
	Expected float64 // scrapes
	Stored   float64 // scrapes that gave new values
	Asked    float64 // requests
	Failed   float64
	Cores    float64
	RSS      float64 // MiB, the most
	LagP99   float64 // s, from a collection to the arrival of its values
	Short    int     // targets whose window is shorter than it should be
	Memory   float64 // MiB that the store accounts for
}

// benchFleet measures the scraper and the store by themselves, in a process of
// their own, at growing numbers of targets.
func benchFleet(ctx context.Context, cfg config, out io.Writer) ([]Row, error) {
	sizes, err := fleetSizes(cfg.targets)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, n := range sizes {
		fmt.Fprintf(out, "fleet: %d targets, window of %v, load average %s\n", n, cfg.window, loadAverage())
		l, err := measureFleet(ctx, cfg, n)
		if err != nil {
			return nil, err
		}
		rows = append(rows, l.rows(fmt.Sprintf("scraper and store, %d targets", n), n)...)
	}
	return rows, nil
}

// rows are those of the table; the bars are of 10,000 targets.
func (l *load) rows(name string, targets int) []Row {
	rows := []Row{
		figure(name+", scrapes", l.Stored/fleetMeasured.Seconds(), "1/s"),
		atMost("  missed", max(0, 100*(1-l.Stored/l.Expected)), "%", barFleetMissed),
		figure("  CPU", l.Cores, "cores"),
		figure("  RSS", l.RSS, "MiB"),
		figure("  requests that failed", l.Failed, ""),
		figure("  lag behind the collection, p99", l.LagP99*1000, "ms"),
		figure("  memory that the store accounts for", l.Memory, "MiB"),
	}
	if targets == barFleetOfMost {
		rows[2] = calibrated("  CPU", l.Cores, "cores", barFleetCores)
		rows[3] = atMost("  RSS", l.RSS, "MiB", barFleetRSS)
	}
	if l.Short > 0 {
		rows = append(rows, atMost("  targets with a short window", float64(l.Short), "", 0))
	}
	return rows
}

func fleetSizes(list string) ([]int, error) {
	var out []int
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("-targets %q: %q is not a number of targets", list, text)
		}
		out = append(out, n)
	}
	return out, nil
}

// startFleet starts the agents' side of a fleet in a process of its own.
func startFleet(ctx context.Context, n int) (*agentrig.Agent, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return agentrig.Start(ctx, agentrig.Config{Binary: self, Args: []string{"-fleet", strconv.Itoa(n)}})
}

func measureFleet(ctx context.Context, cfg config, n int) (*load, error) {
	server, err := startFleet(ctx, n)
	if err != nil {
		return nil, err
	}
	defer func() { _ = server.Stop() }()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var result, says bytes.Buffer
	args := []string{"-fleet", strconv.Itoa(n), "-scrape-fleet", server.URL, "-window", cfg.window.String()}
	if cfg.labels != "" {
		args = append(args, "-labels", cfg.labels)
	}
	if cfg.profile != "" {
		args = append(args, "-profile", cfg.profile)
	}
	client := exec.CommandContext(ctx, self, args...)
	client.Stdout, client.Stderr = &result, &says
	client.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := client.Run(); err != nil {
		return nil, fmt.Errorf("scrape %d targets: %w; it said:\n%s", n, err, says.String())
	}
	l := new(load)
	return l, json.Unmarshal(result.Bytes(), l)
}

// scrapeFleet is the client: it scrapes until the window is full, measures, and
// writes what it measured.
func scrapeFleet(ctx context.Context, cfg config, out io.Writer) error {
	server, err := url.Parse(cfg.scrapeFleet)
	if err != nil {
		return err
	}
	store := series.New(series.Config{Span: cfg.window, MaxBytes: fleetMemory})
	s := scrape.New(scrape.Config{}, scrape.Deps{
		Client: scrape.NewClient(), Dial: (&net.Dialer{}).DialContext, Store: store, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	ctx, cancel := context.WithCancel(ctx)
	go gcpace.Run(ctx) // as the controller does
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	targets := make([]scrape.Target, cfg.fleet)
	for i := range targets {
		targets[i] = scrape.Target{
			Name: "agent/gpupilot-system/agent-" + strconv.Itoa(i), Kind: scrape.Agent,
			URL:    url.URL{Scheme: "http", Host: agentAddress(i).String() + ":" + server.Port(), Path: "/metrics"},
			Labels: series.TargetLabels{Node: fleetNode(i), Instance: agentAddress(i).String(), Job: "gpupilot-agent"},
			Fields: gpu.SetOf(gpu.GPUUtil, gpu.FBUsed, gpu.PowerUsage, gpu.GPUTemp),
		}
	}
	s.SetNames(labelNames(cfg.labels))
	s.Sync(targets)
	if err := pause(ctx, cfg.window+15*time.Second); err != nil {
		return err
	}
	l, err := observe(ctx, func() (count, error) {
		cpu, err := agentrig.CPU(os.Getpid())
		st := s.Stats()
		c := count{stored: float64(st.Samples) / (fleetGPUs * fleetFields), asked: float64(st.Scrapes), cpu: cpu}
		for _, n := range st.Failures {
			c.failed += float64(n)
		}
		return c, err
	}, os.Getpid())
	if err != nil {
		return err
	}
	l.Expected = float64(cfg.fleet) * fleetMeasured.Seconds()
	l.LagP99 = lagP99(s.States())
	st := store.Stats()
	l.Short, l.Memory = st.Short, float64(st.Memory)/(1<<20)
	if err := writeProfiles(cfg.profile); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(l)
}

// count is what was counted up to a moment.
type count struct {
	stored, asked, failed float64
	cpu                   time.Duration
}

// observe measures a process for fleetMeasured.
func observe(ctx context.Context, now func() (count, error), pid int) (*load, error) {
	l := new(load)
	before, err := now()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	for time.Since(began) < fleetMeasured {
		rss, err := agentrig.RSS(pid)
		if err != nil {
			return nil, err
		}
		l.RSS = max(l.RSS, float64(rss)/(1<<20))
		if err := pause(ctx, min(sampleEvery, fleetMeasured-time.Since(began))); err != nil {
			return nil, err
		}
	}
	after, err := now()
	if err != nil {
		return nil, err
	}
	scale := fleetMeasured.Seconds() / time.Since(began).Seconds()
	l.Stored, l.Asked, l.Failed = scale*(after.stored-before.stored), scale*(after.asked-before.asked), scale*(after.failed-before.failed)
	l.Cores = (after.cpu - before.cpu).Seconds() / time.Since(began).Seconds()
	return l, nil
}

func lagP99(states []scrape.State) float64 {
	var lags []float64
	for i := range states {
		lag := math.Inf(1)
		if !states[i].LastSuccess.IsZero() {
			lag = states[i].Lag.Seconds()
		}
		lags = append(lags, lag)
	}
	slices.SortFunc(lags, cmp.Compare)
	return min(quantile(lags, 0.99), 1e6)
}

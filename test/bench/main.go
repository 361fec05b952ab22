// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command bench measures GPUPilot on this machine and prints a table: what a
// scrape of the agent costs, what the agent weighs, what a hung GPU library does
// to it, how long it takes from a value in the GPU library to replicas, and what
// the metrics API costs. It runs the real programs: the agent on the fake GPU
// libraries, the controller on a real control plane.
//
// Bars of times are ratios, so that they hold on any machine: to the same bytes from
// a bare net/http handler, to the way of a library, or to the bar of the reference
// machine, corrected by a calibration loop. Bars of memory, of counts, and of times
// that are mostly waiting are absolute.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// Row is one line of the table. Bar is empty where there is none to pass.
type Row struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`

	// Ratio is Value / Reference, which has the same unit and is of the same run. Of says
	// what the reference is. All are empty if the bar is absolute, or if there is none.
	Ratio     float64 `json:"ratio,omitempty"`
	Reference float64 `json:"reference,omitempty"`
	Of        string  `json:"of,omitempty"`

	Bar string `json:"bar"`
	OK  bool   `json:"ok"`
}

// atMost is a row whose value must not exceed bar.
func atMost(name string, value float64, unit string, bar float64) Row {
	return Row{Name: name, Value: value, Unit: unit, Bar: fmt.Sprintf("≤ %g", bar), OK: value <= bar}
}

// relative is a row whose ratio to a reference must not exceed bar.
func relative(name string, value float64, unit, of string, reference, bar float64) Row {
	r := Row{Name: name, Value: value, Unit: unit, Reference: reference, Of: of, Bar: fmt.Sprintf("≤ %g", bar)}
	if reference > 0 { // else the row misses its bar: the machine did too much else
		r.Ratio = value / reference
		r.OK = r.Ratio <= bar
	}
	return r
}

// figure is a row that is only reported.
func figure(name string, value float64, unit string) Row {
	return Row{Name: name, Value: value, Unit: unit, OK: true}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// config is what the flags say.
type config struct {
	bin      string // folder of the programs and the fake libraries
	exporter string // a dcgm-exporter
	out      string
	scrapes  int
	paced    int
	ticks    int
	soak     time.Duration
	hang     time.Duration
	changes  int
	only     string

	targets string        // how many a fleet has, a list
	window  time.Duration // of samples that are kept of a fleet
	profile string        // folder for profiles of what scrapes a fleet

	labels        string // of which series of a fleet: all or used; empty: of none
	fleet         int    // serve the pages of so many agents
	scrapeFleet   string // scrape those that are served at this port
	podRequests   int
	servePods     int    // serve the metrics API with as many pods and nothing else
	servePodsFrom string // folder of its certificate and kubeconfig

	serveAdapter bool // measure this process with an adapter's rules

	mooncake string // trace of the arena

	reference string // serve this file's bytes and nothing else
	address   string // where to
}

func (c *config) flags() *flag.FlagSet {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.StringVar(&c.bin, "bin", "bin", "folder of the programs and of the fake libraries")
	fs.StringVar(&c.mooncake, "mooncake", "", "file of Mooncake's trace, .jsonl as published or a CSV of requests: the eighth load of the arena")
	fs.StringVar(&c.exporter, "exporter", "", "a dcgm-exporter `binary` that is measured beside the agent, in the part exporter")
	fs.StringVar(&c.out, "out", "bin/bench.json", "file to write the rows to, as JSON")
	fs.IntVar(&c.scrapes, "scrapes", 10000, "scrapes per case, as fast as they are answered")
	fs.IntVar(&c.paced, "paced", 50, "scrapes per case at 10 a second")
	fs.IntVar(&c.ticks, "ticks", 40, "collections per case whose CPU time is measured")
	fs.DurationVar(&c.soak, "soak", 30*time.Second, "how long the agent is scraped 10 times a second before its memory is measured; 10m for the figure of the documentation")
	fs.DurationVar(&c.hang, "hang", 12*time.Second, "how long the GPU library hangs")
	fs.IntVar(&c.changes, "changes", 304, "changes of a GPU's utilisation per reaction time")
	fs.StringVar(&c.only, "only", "", "run one part: "+strings.Join(partNames(), ", ")+" (default all)")
	fs.StringVar(&c.targets, "targets", "100,1000,3000,10000", "numbers of agents that are scraped each second, 8 GPUs with 4 fields each")
	fs.DurationVar(&c.window, "window", 5*time.Minute, "how long a fleet's samples are kept; a fleet is measured once its windows are full")
	fs.StringVar(&c.profile, "profile", "", "folder to write profiles of the process that scrapes a fleet to")
	fs.StringVar(&c.labels, "labels", "", "with -scrape-fleet: keep the labels of all series, or of one used metric: all, used (default none)")
	fs.IntVar(&c.fleet, "fleet", 0, "instead: serve the pages of so many agents, at addresses below 127.0.0.0/8")
	fs.StringVar(&c.scrapeFleet, "scrape-fleet", "", "instead, with -fleet: scrape so many agents at the port of this URL")
	fs.IntVar(&c.podRequests, "pod-requests", 300, "requests for the metric of all pods, per number of pods and way to ask")
	fs.IntVar(&c.servePods, "serve-pods", 0, "instead: serve the metrics API with as many pods, and nothing else")
	fs.StringVar(&c.servePodsFrom, "serve-pods-from", "", "with -serve-pods: folder of its certificate and its kubeconfig")
	fs.BoolVar(&c.serveAdapter, "serve-adapter", false, "instead: read the rules of an adapter's file for a while, and print the cost")
	fs.StringVar(&c.reference, "reference", "", "instead: serve this file's bytes, with net/http and nothing else")
	fs.StringVar(&c.address, "address", "127.0.0.1:0", "with -reference: where to")
	return fs
}

// part is a group of rows that are measured together.
type part struct {
	name string
	run  func(context.Context, config, io.Writer) ([]Row, error)
}

func parts() []part {
	return []part{
		{"scrape", benchScrape},
		{"exporter", benchExporter},
		{"tick", benchTick},
		{"memory", benchMemory},
		{"hang", benchHang},
		{"reaction", benchReaction},
		{"takeover", benchTakeover},
		{"freshness", benchFreshness},
		{"fleet", benchFleet},
		{"fleet-controller", benchFleetController},
		{"pods", benchPods},
		{"promql", benchPromQL},
		{"adapter", benchAdapter},
		{"keda", benchKEDA},
		{"labels", benchLabels},
		{"bars", benchBars},
		{"arena", benchArena},
	}
}

func partNames() []string {
	var names []string
	for _, p := range parts() {
		names = append(names, p.name)
	}
	return names
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var cfg config
	if err := cfg.flags().Parse(args); err != nil {
		return err
	}
	switch {
	case cfg.reference != "":
		return serveReference(ctx, cfg, out)
	case cfg.scrapeFleet != "":
		return scrapeFleet(ctx, cfg, out)
	case cfg.fleet > 0:
		return serveFleet(ctx, cfg, out)
	case cfg.serveAdapter:
		return serveAdapter(ctx, out)
	case cfg.servePods > 0:
		return servePods(ctx, cfg, out)
	}
	fmt.Fprintf(out, "on %d cores, %s, load average %s\n", runtime.NumCPU(), runtime.Version(), loadAverage())
	var rows []Row
	for _, p := range parts() {
		if cfg.only != "" && cfg.only != p.name {
			continue
		}
		r, err := p.measure(ctx, cfg, out)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		rows = append(rows, r...)
	}
	fmt.Fprintf(out, "load average at the end %s\n", loadAverage())
	if err := write(cfg.out, rows); err != nil {
		return err
	}
	return table(out, rows)
}

// loadAverage is the machine's over one minute: a machine that does other work
// gives worse figures.
func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(b), " ")
	return first
}

func write(path string, rows []Row) error {
	body, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(body, '\n'), 0o644)
}

// table prints the rows and fails if one misses its bar.
func table(out io.Writer, rows []Row) error {
	w := tabwriter.NewWriter(out, 2, 0, 3, ' ', 0)
	fmt.Fprintln(w, "what\tvalue\tunit\tratio\tbar\t")
	missed := 0
	for _, r := range rows {
		verdict := ""
		if r.Bar != "" {
			verdict = "ok"
		}
		if !r.OK {
			verdict, missed = "MISSED", missed+1
		}
		ratio := ""
		if r.Of != "" {
			ratio = fmt.Sprintf("%.2f × %s (%.3g)", r.Ratio, r.Of, r.Reference)
		}
		fmt.Fprintf(w, "%s\t%.3g\t%s\t%s\t%s\t%s\n", r.Name, r.Value, r.Unit, ratio, r.Bar, verdict)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if missed > 0 {
		return fmt.Errorf("%d of %d rows miss their bar", missed, len(rows))
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// quantile is of sorted values, nearest rank.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

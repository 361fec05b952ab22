// SPDX-License-Identifier: Apache-2.0

// Command bench measures GPUPilot on this machine and prints a table: what a
// scrape of the agent costs, what the agent weighs, and how long it takes from
// a value in the GPU library to replicas. It runs the real programs: the agent
// on the fake NVML, the controller on a real control plane.
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
	"syscall"
	"text/tabwriter"
)

// Row is one line of the table. Bar is empty where there is none to pass.
type Row struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Bar   string  `json:"bar"`
	OK    bool    `json:"ok"`
}

// atMost is a row whose value must not exceed bar.
func atMost(name string, value float64, unit string, bar float64) Row {
	return Row{Name: name, Value: value, Unit: unit, Bar: fmt.Sprintf("≤ %g", bar), OK: value <= bar}
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
	bin     string // folder of the programs and the fake NVML
	out     string
	scrapes int
	changes int
	only    string
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var cfg config
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.StringVar(&cfg.bin, "bin", "bin", "folder of the programs and of the fake NVML")
	fs.StringVar(&cfg.out, "out", "bin/bench.json", "file to write the rows to, as JSON")
	fs.IntVar(&cfg.scrapes, "scrapes", 20000, "scrapes per case")
	fs.IntVar(&cfg.changes, "changes", 304, "changes of a GPU's utilisation per reaction time")
	fs.StringVar(&cfg.only, "only", "", "run one part: agent or reaction (default both)")
	if err := fs.Parse(args); err != nil {
		return err
	}
	fmt.Fprintf(out, "on %d cores, %s\n", runtime.NumCPU(), runtime.Version())
	var rows []Row
	for _, part := range []struct {
		name string
		run  func(context.Context, config, io.Writer) ([]Row, error)
	}{{"agent", benchAgent}, {"reaction", benchReaction}} {
		if cfg.only != "" && cfg.only != part.name {
			continue
		}
		r, err := part.run(ctx, cfg, out)
		if err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		rows = append(rows, r...)
	}
	if err := write(cfg.out, rows); err != nil {
		return err
	}
	return table(out, rows)
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
	fmt.Fprintln(w, "what\tvalue\tunit\tbar\t")
	missed := 0
	for _, r := range rows {
		verdict := ""
		if r.Bar != "" {
			verdict = "ok"
		}
		if !r.OK {
			verdict, missed = "MISSED", missed+1
		}
		fmt.Fprintf(w, "%s\t%.3g\t%s\t%s\t%s\n", r.Name, r.Value, r.Unit, r.Bar, verdict)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if missed > 0 {
		return fmt.Errorf("%d of %d rows miss their bar", missed, len(rows))
	}
	return nil
}

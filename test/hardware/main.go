// SPDX-License-Identifier: Apache-2.0

// Command hardware measures gpupilot load on the GPU of this machine, and writes RESULTS.md. Each row is kept in a
// file: a run that was interrupted goes on where it ended.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/loadgen/calibration"
	"github.com/gpupilot/gpupilot/internal/loadgen/check"
	"github.com/gpupilot/gpupilot/internal/loadgen/load"
)

// Config is what the flags say.
type Config struct {
	program, folder, page, calibrations string
	seconds                             int // of a level
	only, arguments                     string
}

// row is one measurement.
type row struct {
	name string
	args []string
}

// rows are all measurements. With levels of 5 s they take about eight minutes.
func (c Config) rows() (out []row) {
	for _, k := range load.Kinds() {
		if !strings.HasPrefix(k.Name, "nvlink") && k.Name != load.VectorAdd {
			steps := fmt.Sprintf("0.2,0.6,1,0.4,0.8:%ds", c.seconds)
			out = append(out, row{k.Name, []string{"-t", k.Name, "--steps", steps, "--check", "nvml", "--check", "dcgm"}})
		}
	}
	sine := fmt.Sprintf("0.1:0.9:%ds", 4*c.seconds)
	lag := row{"lag", []string{"-t", "tensor", "--sine", sine, "-d", fmt.Sprint(12 * c.seconds), "--check", "nvml", "--check", "dcgm"}}
	calibration := row{"calibration", []string{"--calibrate", filepath.Join(c.folder, "table.json")}}
	if c.seconds != 5 {
		calibration.args = append(calibration.args, "-t", "tensor", "--steps", fmt.Sprintf("0.5,1:%ds", c.seconds))
	}
	return append(out, lag, calibration)
}

func main() {
	c := Config{program: "bin/gpupilot", folder: "bin/hardware", page: "test/hardware/RESULTS.md", calibrations: "docs/calibration"}
	flag.StringVar(&c.folder, "folder", c.folder, "where rows are kept")
	flag.StringVar(&c.program, "program", c.program, "the command")
	flag.StringVar(&c.page, "page", c.page, "the page to write")
	flag.StringVar(&c.calibrations, "calibrations", c.calibrations, "the folder of the calibrations")
	flag.IntVar(&c.seconds, "seconds", 5, "length of a level")
	flag.StringVar(&c.only, "only", "", "rows to measure, separated by commas (default: all)")
	flag.StringVar(&c.arguments, "arguments", "--gpu 0", "further arguments of gpupilot load gpu")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c); err != nil {
		fmt.Fprintln(os.Stderr, "hardware:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, c Config) error {
	if err := os.MkdirAll(c.folder, 0o755); err != nil {
		return err
	}
	var done []measured
	for _, r := range c.rows() {
		if c.only != "" && !slices.Contains(strings.Split(c.only, ","), r.name) {
			continue
		}
		m, err := c.measure(ctx, r)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		done = append(done, m)
	}
	var list []beside
	if c.only == "" || slices.Contains(strings.Split(c.only, ","), "nvidia-smi") {
		var err error
		if list, err = c.besideSMI(ctx); err != nil {
			return fmt.Errorf("nvidia-smi: %w", err)
		}
	}
	if err := c.keepCalibration(); err != nil {
		return err
	}
	text, err := page(c, done, list)
	if err != nil {
		return err
	}
	return os.WriteFile(c.page, []byte(text), 0o644)
}

// keepCalibration copies the calibration of each model to where docs/metrics.md finds it.
func (c Config) keepCalibration() error {
	tables, err := calibration.Read(filepath.Join(c.folder, "table.json"))
	if err != nil {
		return nil //nolint:nilerr // this row was not measured
	}
	if err := os.MkdirAll(c.calibrations, 0o755); err != nil {
		return err
	}
	for _, t := range tables {
		name := strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(t.Model), "-"), "-")
		if err := calibration.Write(filepath.Join(c.calibrations, name+".json"), []calibration.Table{t}); err != nil {
			return err
		}
	}
	return nil
}

// measured is a row that is done.
type measured struct {
	row
	steps   []load.Step
	results []check.Result
}

// measure runs a row, unless its file is there. Exit code 1 is a source that is wrong, 2 one that could not be measured.
func (c Config) measure(ctx context.Context, r row) (measured, error) {
	file := filepath.Join(c.folder, r.name+".jsonl")
	b, err := os.ReadFile(file)
	if err != nil {
		fmt.Fprintln(os.Stderr, "hardware:", r.name)
		cmd := exec.CommandContext(ctx, c.program, slices.Concat([]string{"load", "gpu", "-o", "json"}, strings.Fields(c.arguments), r.args)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		b, err = cmd.Output()
		var exit *exec.ExitError
		if errors.As(err, &exit) && (exit.ExitCode() == load.ExitOff || exit.ExitCode() == load.ExitUnmeasured) && bytes.Contains(b, []byte(`{"check"`)) {
			err = nil
		}
		if err != nil {
			return measured{}, fmt.Errorf("%w\n%s", err, excerpt.Of(stderr.String(), 2000))
		}
		if err := os.WriteFile(file+".new", b, 0o644); err != nil {
			return measured{}, err
		}
		if err := os.Rename(file+".new", file); err != nil {
			return measured{}, err
		}
	}
	m := measured{row: r}
	for line := range bytes.Lines(b) {
		var l check.Line
		if err := json.Unmarshal(line, &l); err != nil {
			return m, err
		}
		if l.Check != nil {
			m.results = append(m.results, *l.Check)
			continue
		}
		var s load.Step
		if err := json.Unmarshal(line, &s); err != nil {
			return m, err
		}
		m.steps = append(m.steps, s)
	}
	return m, nil
}

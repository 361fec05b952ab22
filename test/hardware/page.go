// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/loadgen/calibration"
	"github.com/gpupilot/gpupilot/internal/loadgen/load"
	"github.com/gpupilot/gpupilot/internal/loadgen/verdict"
)

// page is RESULTS.md.
func page(c Config, done []measured, list []beside) (string, error) {
	var out strings.Builder
	fmt.Fprintf(&out, "# Measured on a GPU\n\n`make hardware` measured this %s.\n\n"+
		"It takes about eight minutes, and keeps each row in `bin/hardware/`. A run that was interrupted goes on where it\n"+
		"ended: remove the folder to measure again. After it, this brings the calibration to\n"+
		"[metrics.md](../../docs/metrics.md#what-an-activity-is-worth):\n\n"+
		"    go test ./internal/node/exposition -run MetricsDocument -update\n", device(done))
	fmt.Fprint(&out, "\n## Generated and shown\n\nThe whole load, and the verdict on each source over 20, 40, 60, 80 and 100 % of it.\n\n"+
		"| load | generated | rate | of the peak | SM clock | power | sources |\n|---|---|---|---|---|---|---|\n")
	never := unmeasured(done)
	for _, m := range done {
		if m.name == "calibration" || m.name == "lag" {
			continue
		}
		if s, ok := whole(m.steps); ok {
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s | %s | %s | %s |\n", m.name, generated(s), value("%.2f "+s.RateUnit, s.Rate, 1), value("%.0f %%", s.Share, 100),
				value("%.0f MHz", s.ClockMHz, 1), value("%.0f W", s.Watts, 1), verdicts(m, never))
		}
	}
	for _, source := range slices.Sorted(maps.Keys(never)) {
		fmt.Fprintf(&out, "\nNot measured: `%s` (%s).\n", source, never[source])
	}
	for _, m := range done {
		if m.name != "lag" {
			continue
		}
		fmt.Fprint(&out, "\n## Lag\n\nUnder a sine on the tensor cores.\n\n| source | lag | interval | verdict |\n|---|---|---|---|\n")
		for _, r := range m.results {
			if never[r.Source] != "" {
				continue
			}
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", r.Source, value("%.1f s", r.Lag, 1), value("%.1f s", r.Interval, 1), r.Verdict)
		}
	}
	out.WriteString(besideTable(list))
	if b, err := os.ReadFile(filepath.Join(c.folder, "table.json")); err == nil {
		text, err := calibrationTables(b)
		if err != nil {
			return "", err
		}
		out.WriteString(text)
	}
	if b, err := c.driver(); err == nil {
		fmt.Fprintf(&out, "\n## nvidia-smi\n\n```text\n%s```\n", b)
	}
	return out.String(), nil
}

// driver is what nvidia-smi says of the GPUs. It is kept, as a row is.
func (c Config) driver() ([]byte, error) {
	file := filepath.Join(c.folder, "nvidia-smi.csv")
	if b, err := os.ReadFile(file); err == nil {
		return b, nil
	}
	b, err := exec.Command("nvidia-smi", "--query-gpu=name,driver_version,memory.total,power.limit,ecc.mode.current", "--format=csv").Output() //nolint:noctx // it answers or fails at once
	if err != nil {
		return nil, err
	}
	return b, os.WriteFile(file, b, 0o644)
}

// unmeasured returns the sources that could be measured in no row, with the reason.
func unmeasured(done []measured) map[string]string {
	never := map[string]string{}
	for _, m := range done {
		for _, r := range m.results {
			if r.Finding == verdict.Unmeasured {
				never[r.Source], _, _ = strings.Cut(strings.TrimPrefix(r.Detail, "gpupilot-agent has ended: "), ";")
			}
		}
	}
	for _, m := range done {
		for _, r := range m.results {
			if r.Finding != verdict.Unmeasured {
				delete(never, r.Source)
			}
		}
	}
	return never
}

// calibrationTables are the tables of a calibration.
func calibrationTables(b []byte) (string, error) {
	var tables []calibration.Table
	if err := json.Unmarshal(b, &tables); err != nil {
		return "", err
	}
	var out strings.Builder
	for _, t := range tables {
		fmt.Fprintf(&out, "\n## Calibration of %s\n\n| load | duty | field shows | rate | of the peak | power |\n|---|---|---|---|---|---|\n", t.Model)
		for _, p := range t.Points {
			fmt.Fprintf(&out, "| `%s` | %.2f | %s | %s | %s | %s |\n", p.Load, p.Duty, value("%.4g", p.Generated, 1), value("%.2f "+p.RateUnit, p.Rate, 1),
				value("%.0f %%", p.Share, 100), value("%.0f W", p.Watts, 1))
		}
	}
	return out.String(), nil
}

// device says when and on which GPU it was measured.
func device(done []measured) string {
	for _, m := range done {
		if len(m.steps) > 0 {
			g := m.steps[0].GPU
			return fmt.Sprintf("on %s, on %s (compute capability %s, %d SMs, %d MiB)", m.steps[0].Start.UTC().Format(time.DateOnly), g.Name, g.ComputeCapability, g.SMs, g.MemoryBytes>>20)
		}
	}
	return "on an unknown GPU"
}

// whole is a step of the whole load, the last one: the clock has settled.
func whole(steps []load.Step) (out load.Step, ok bool) {
	for _, s := range steps {
		if s.Duty > 0.999 {
			out, ok = s, true
		}
	}
	return out, ok
}

func generated(s load.Step) string {
	switch {
	case s.Generated == nil:
		return "unknown"
	case s.Unit == "ratio":
		return fmt.Sprintf("%.4f ± %.4f", *s.Generated, s.Error)
	}
	return fmt.Sprintf("%.2f ± %.2f GB/s", *s.Generated/1e9, s.Error/1e9)
}

// verdicts are those of a row's sources, without those that no row has.
func verdicts(m measured, never map[string]string) string {
	var list []string
	for _, r := range m.results {
		if never[r.Source] == "" {
			list = append(list, fmt.Sprintf("%s: %s", r.Source, r.Verdict))
		}
	}
	return strings.Join(list, "; ")
}

func value(format string, v *float64, factor float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, *v*factor)
}

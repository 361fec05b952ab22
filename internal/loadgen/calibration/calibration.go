// SPDX-License-Identifier: Apache-2.0

// Package calibration keeps what known loads generated on a model of GPU, and what the GPUs of a server show over its batch.
package calibration

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/gpupilot/gpupilot/internal/loadgen/load"
)

// Table is what the loads of one model of GPU generated: how a field's value translates to a rate and to power.
type Table struct {
	Model             string  `json:"model"`
	ComputeCapability string  `json:"computeCapability"`
	SMs               int     `json:"sms"`
	Points            []Point `json:"points,omitempty"`
	// Server is the inference server that Batches were measured on.
	Server  string  `json:"server,omitempty"`
	Batches []Batch `json:"batches,omitempty"`
}

// Batch is what the GPUs of a server show while it decodes a number of sequences: means over a time.
type Batch struct {
	Batch        float64  `json:"batch"`
	SMActive     float64  `json:"smActive"`
	TensorActive *float64 `json:"tensorActive,omitempty"`
	DRAMActive   *float64 `json:"dramActive,omitempty"`
	Watts        *float64 `json:"watts,omitempty"` // per GPU
}

// BatchFormat is a row of a table of batches.
const BatchFormat = "%7s  %6s  %6s  %6s  %8s\n"

// String is the batch as a row of a table.
func (b Batch) String() string {
	return strings.TrimSuffix(fmt.Sprintf(BatchFormat, fmt.Sprintf("%.1f", b.Batch), fmt.Sprintf("%.3f", b.SMActive),
		text("%.3f", b.TensorActive, 1), text("%.3f", b.DRAMActive, 1), text("%.0f W", b.Watts, 1)), "\n")
}

// maxCalibration bounds a file of tables, in bytes.
const maxCalibration = 4 << 20

// Read reads a file that Write wrote.
func Read(path string) (out []Table, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	b, err := io.ReadAll(io.LimitReader(f, maxCalibration))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return out, nil
}

// Batches returns the batches of the file's only server.
func Batches(path string) ([]Batch, error) {
	tables, err := Read(path)
	if err != nil {
		return nil, err
	}
	tables = slices.DeleteFunc(tables, func(c Table) bool { return len(c.Batches) == 0 })
	if len(tables) != 1 {
		return nil, fmt.Errorf("%s has batches of %d servers, want those of one: gpupilot load server --calibrate writes them", path, len(tables))
	}
	return tables[0].Batches, nil
}

// Point is the mean of the steps of one load at one duty. A nil pointer is a value that could not be read.
type Point struct {
	Load      string   `json:"load"`
	Duty      float64  `json:"duty"`
	Generated *float64 `json:"generated,omitempty"` // in the field's unit
	Error     float64  `json:"error"`
	Rate      *float64 `json:"rate,omitempty"`
	RateUnit  string   `json:"rateUnit,omitempty"`
	Share     *float64 `json:"shareOfPeak,omitempty"`
	Watts     *float64 `json:"watts,omitempty"`
	ClockMHz  *float64 `json:"clockMHz,omitempty"`
	Steps     int      `json:"steps"`
}

// Calibrator collects steps. It may be used by several goroutines.
type Calibrator struct {
	mu     sync.Mutex
	models map[string]*Table
	sums   map[pointKey]*pointSums
}

type pointKey struct {
	model, load string
	percent     int // of the duty
}

type pointSums struct {
	step     load.Step // the first one
	n        float64
	duty     float64
	maxError float64

	generated, generatedN, rate, rateN, share, shareN, watts, wattsN, clock, clockN float64
}

// Add adds a step. Steps in which the duty changes are left out: they say little about a duty.
func (c *Calibrator) Add(s load.Step) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.models == nil {
		c.models, c.sums = map[string]*Table{}, map[pointKey]*pointSums{}
	}
	if c.models[s.GPU.Name] == nil {
		c.models[s.GPU.Name] = &Table{Model: s.GPU.Name, ComputeCapability: s.GPU.ComputeCapability, SMs: s.GPU.SMs}
	}
	key := pointKey{s.GPU.Name, s.Load, int(100*s.Duty + 0.5)}
	p := c.sums[key]
	if p == nil {
		p = &pointSums{step: s}
		c.sums[key] = p
	}
	p.n++
	p.duty += s.Duty
	p.maxError = max(p.maxError, s.Error)
	for _, v := range []struct {
		value  *float64
		sum, n *float64
	}{
		{s.Generated, &p.generated, &p.generatedN},
		{s.Rate, &p.rate, &p.rateN},
		{s.Share, &p.share, &p.shareN},
		{s.Watts, &p.watts, &p.wattsN},
		{s.ClockMHz, &p.clock, &p.clockN},
	} {
		if v.value != nil {
			*v.sum += *v.value
			*v.n++
		}
	}
}

// leastSteps is how many steps a point needs: one step in which the duty changes makes none.
const leastSteps = 2

// Tables returns a calibration for each model, sorted by name, load and duty.
func (c *Calibrator) Tables() (out []Table) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c.models)) {
		table := *c.models[name]
		for key, p := range c.sums {
			if key.model != name || p.n < leastSteps {
				continue
			}
			table.Points = append(table.Points, Point{
				Load: key.load, Duty: p.duty / p.n, Generated: mean(p.generated, p.generatedN), Error: p.maxError, Steps: int(p.n),
				Rate: mean(p.rate, p.rateN), RateUnit: p.step.RateUnit, Share: mean(p.share, p.shareN),
				Watts: mean(p.watts, p.wattsN), ClockMHz: mean(p.clock, p.clockN),
			})
		}
		slices.SortFunc(table.Points, func(a, b Point) int { return cmp.Or(cmp.Compare(a.Load, b.Load), cmp.Compare(a.Duty, b.Duty)) })
		out = append(out, table)
	}
	return out
}

func mean(sum, n float64) *float64 {
	if n == 0 {
		return nil
	}
	v := sum / n
	return &v
}

// Write replaces the file at path by the tables, as JSON.
func (c *Calibrator) Write(path string) error { return Write(path, c.Tables()) }

// Write replaces the file at path by tables, as JSON.
func Write(path string, tables []Table) error {
	b, err := json.MarshalIndent(tables, "", "  ")
	if err != nil {
		return err
	}
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(temporary, append(b, '\n'), 0o644); err != nil { //nolint:gosec // a table for everybody
		return fmt.Errorf("--calibrate: %w", err)
	}
	return os.Rename(temporary, path)
}

// text is a value times a factor; - if it is not known.
func text(format string, v *float64, factor float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, *v*factor)
}

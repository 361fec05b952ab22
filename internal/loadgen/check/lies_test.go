// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/sim"
	"github.com/gpupilot/gpupilot/internal/loadgen/load"
	"github.com/gpupilot/gpupilot/internal/loadgen/verdict"
)

// exporter collects the field of two simulated GPUs once per interval, and shows what lie makes of all collections so
// far.
type exporter struct {
	name, file string
	interval   time.Duration
	lie        func(history []Values) Values

	history []Values
	shown   Values
	next    time.Time
}

func (e *exporter) Name() string { return e.name }

func (e *exporter) Read(_ context.Context, want func(gpu.FieldID) bool) (Values, error) {
	for !time.Now().Before(e.next) {
		b, err := os.ReadFile(e.file)
		if err != nil {
			return nil, err
		}
		state, err := sim.ParseState(b)
		if err != nil {
			return nil, err
		}
		values := Values{{gpuA, gpu.TensorActive}: 0, {gpuB, gpu.TensorActive}: 0}
		for i, g := range state.GPUs {
			if v := g.Fields["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"]; v != nil {
				values[Key{sim.UUID("n1", i), gpu.TensorActive}] = *v
			}
		}
		e.history = append(e.history, values)
		e.shown = e.lie(e.history)
		e.next = time.Now().Add(e.interval)
	}
	return e.shown, nil
}

var gpuA, gpuB = sim.UUID("n1", 0), sim.UUID("n1", 1)

// of makes a lie from one about the loaded GPU's value.
func of(change func(v float64) float64) func([]Values) Values {
	return func(history []Values) Values {
		out := maps.Clone(history[len(history)-1])
		out[Key{gpuA, gpu.TensorActive}] = change(out[Key{gpuA, gpu.TensorActive}])
		return out
	}
}

func without(values Values) Values {
	out := maps.Clone(values)
	delete(out, Key{gpuA, gpu.TensorActive})
	return out
}

// tenLies are exporters that are wrong in ten ways.
var tenLies = []struct {
	name string
	want verdict.Finding
	lie  func(history []Values) Values
}{
	{"always 0", verdict.Frozen, of(func(float64) float64 { return 0 })},
	{"stops", verdict.Frozen, func(h []Values) Values { return h[min(len(h)-1, 20)] }},
	{"late", verdict.Lagging, func(h []Values) Values { return h[max(0, len(h)-1-9)] }},
	{"half", verdict.Scaled, of(func(v float64) float64 { return v / 2 })},
	{"percent", verdict.Scaled, of(func(v float64) float64 { return 100 * v })},
	{"over 100 %", verdict.Over, of(func(v float64) float64 { return v + 0.3 })},
	{"GPUs swapped", verdict.OtherGPU, func(h []Values) Values {
		last := h[len(h)-1]
		return Values{{gpuA, gpu.TensorActive}: last[Key{gpuB, gpu.TensorActive}], {gpuB, gpu.TensorActive}: last[Key{gpuA, gpu.TensorActive}]}
	}},
	{"no value", verdict.Missing, func(h []Values) Values { return without(h[len(h)-1]) }},
	{"loses the GPU", verdict.Missing, func(h []Values) Values {
		if len(h) > 30 {
			return without(h[len(h)-1])
		}
		return h[len(h)-1]
	}},
	{"square root", verdict.Off, of(math.Sqrt)},
}

// Ten exporters that lie are named right under a load that always moves, and one that is late under every shape. Honest ones
// with the intervals of an agent and of dcgm-exporter are accused under none.
func TestTenLies(t *testing.T) {
	for _, shape := range []load.Shape{
		{Form: load.Sine, Values: []float64{0.1, 0.9}, Every: 40 * time.Second},
		{Form: load.Sine, Values: []float64{0, 1}, Every: 67 * time.Second},
		{Form: load.Ramp, Values: []float64{0, 1}, Every: time.Minute},
		{Form: load.Steps, Values: []float64{0.2, 0.9, 0.4, 0.7, 0.1, 0.8, 0.3, 0.6, 0.9, 0.2, 0.5}, Every: 7 * time.Second},
		{Form: load.Steps, Values: []float64{0.2, 0.6, 1, 0.4, 0.8}, Every: 36 * time.Second},
		{Form: load.Burst, Values: []float64{0.9, 0.1}, Every: 37 * time.Second, High: 15 * time.Second},
	} {
		moves := shape.Form == load.Sine
		synctest.Test(t, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "gpus.json")
			if err := sim.WriteState(file, sim.State{}); err != nil {
				t.Fatal(err)
			}
			honest := func(h []Values) Values { return h[len(h)-1] }
			sources := []Source{
				&exporter{name: "agent", file: file, interval: time.Second, lie: honest},
				&exporter{name: "agent at 5 s", file: file, interval: 5 * time.Second, lie: honest},
				&exporter{name: "dcgm-exporter", file: file, interval: 30 * time.Second, lie: honest},
			}
			want := []verdict.Finding{verdict.Exact, verdict.Exact, verdict.Exact}
			for _, l := range tenLies {
				sources = append(sources, &exporter{name: l.name, file: file, interval: time.Second, lie: l.lie})
				want = append(want, l.want)
			}
			q := load.Sequence{Kinds: []string{"tensor"}, Shapes: map[string]load.Shape{"tensor": shape}, Duration: 3 * time.Minute, Report: time.Second}
			c := New(sources, 0)
			err := c.Run(t.Context(), []load.Sequence{q}, io.Discard, false, func(took func(load.Step)) error {
				return load.Simulated{File: file, Node: "n1", GPUs: []int{0}}.Run(t.Context(), []load.Sequence{q}, func(s load.Step) error {
					took(s)
					return nil
				})
			})
			var failure *load.Failure
			if !errors.As(err, &failure) || failure.Code != load.ExitOff {
				t.Errorf("%v", err)
			}
			var got []verdict.Finding
			for i, r := range c.Results() {
				if r.Finding == verdict.Within {
					r.Finding = verdict.Exact
				}
				got = append(got, r.Finding)
				if !moves && i > 2 && want[i] != verdict.Lagging { // what stands still for long looks like something else
					got[i] = want[i]
					continue
				}
				if r.Finding != want[i] {
					t.Errorf("%s, %s: %v, want %s", shape.Form, r.Source, r.Verdict, want[i])
				}
				if r.Finding == verdict.Lagging && math.Abs(*r.Lag-9.5) > 2 {
					t.Errorf("%s: lags by %.1f s, want 9.5", shape.Form, *r.Lag)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
		})
	}
}

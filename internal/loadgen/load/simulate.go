// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/sim"
)

// Simulated are the simulated GPUs of agents that run with --backend sim: of those with --sim-state File and --node-name Node,
// or of the one at the URL Agent, which runs with --sim-push.
type Simulated struct {
	File  string
	Node  string
	Agent string
	GPUs  []int // indexes

	target target
}

// target is where a simulated load is written.
type target interface {
	uuid(gpu int) (string, bool)
	write(ctx context.Context, s sim.State) error
}

// fileTarget is a file that agents follow.
type fileTarget struct{ path, node string }

func (f fileTarget) uuid(gpu int) (string, bool)                { return sim.UUID(f.node, gpu), true }
func (f fileTarget) write(_ context.Context, s sim.State) error { return sim.WriteState(f.path, s) }

const (
	// writeEvery is how often the state is written. An agent reads it once per collection.
	writeEvery = 100 * time.Millisecond
	// The simulated peaks: PCIe Gen5 with 16 lanes, and 18 NVLinks of 25 GB/s, without headers.
	pciePeak   = 55e9
	nvlinkPeak = 450e9
	// simulatedMemory is what the load holds, MiB.
	simulatedMemory = 1024
)

// Run writes the shapes of the sequences, one sequence after the other, and reports the steps. At its end the GPUs are idle.
func (s Simulated) Run(ctx context.Context, sequences []Sequence, step func(Step) error) (err error) {
	if s.target = (fileTarget{s.File, s.Node}); s.Agent != "" {
		if s.target, err = newAgentTarget(ctx, s.Agent); err != nil {
			return fmt.Errorf("--agent: %w", err)
		}
	}
	for _, g := range s.GPUs {
		if _, ok := s.target.uuid(g); !ok {
			return fmt.Errorf("--gpu %d: the agent has no such GPU", g)
		}
	}
	defer func() {
		if idle := s.write(context.WithoutCancel(ctx), nil, nil); err == nil {
			err = idle
		}
	}()
	for i, q := range sequences {
		if err := s.sequence(ctx, i, q, step); err != nil {
			return err
		}
	}
	return nil
}

func (s Simulated) sequence(ctx context.Context, index int, q Sequence, step func(Step) error) error {
	tick := time.NewTicker(writeEvery)
	defer tick.Stop()
	start := time.Now()
	begin, sums, n := time.Duration(0), make([]float64, len(q.Kinds)), 0
	for at := time.Duration(0); ; at = time.Since(start) {
		if at >= q.Duration || at-begin >= q.Report {
			if n > 0 && at > begin {
				err := s.report(q, sums, n, func(x Step) error {
					x.Sequence, x.Start, x.End, x.Duty = index, start.Add(begin), start.Add(at), q.Shapes[x.Load].Mean(begin, at)
					return step(x)
				})
				if err != nil {
					return err
				}
			}
			begin, n = at, 0
			clear(sums)
		}
		if at >= q.Duration {
			return nil
		}
		duties := make([]float64, len(q.Kinds))
		for i, name := range q.Kinds {
			duties[i] = q.Shapes[name].At(at)
			sums[i] += duties[i]
		}
		n++
		if err := s.write(ctx, q.Kinds, duties); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// report reports the sums of n duties that were written, for each kind and GPU.
func (s Simulated) report(q Sequence, sums []float64, n int, step func(Step) error) error {
	for i, name := range q.Kinds {
		k, _ := KindOf(name)
		duty := sums[i] / float64(n)
		value := duty * k.simulatedPeak()
		for _, g := range s.GPUs {
			uuid, _ := s.target.uuid(g)
			err := step(Step{
				Load: name, Field: k.Field, Unit: k.Unit(), GPU: GPU{Index: g, UUID: uuid, Name: "simulated"},
				Busy: duty, Generated: &value, Variant: "simulated",
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// simulatedPeak is what the field shows at the duty 1.
func (k Kind) simulatedPeak() float64 {
	switch k.Field {
	case gpu.PCIeTxBytes, gpu.PCIeRxBytes:
		return pciePeak
	case gpu.NVLinkTxBytes, gpu.NVLinkRxBytes:
		return nvlinkPeak
	}
	return 1
}

// write replaces the state. GPUs without a load are idle.
func (s Simulated) write(ctx context.Context, kinds []string, duties []float64) error {
	busy, used := 0.0, 0.0
	fields := map[string]*float64{}
	for i, name := range kinds {
		k, _ := KindOf(name)
		f, _ := gpu.Lookup(k.Field)
		value := duties[i] * k.simulatedPeak()
		fields[f.Name] = &value
		used = simulatedMemory
		switch { // a kernel that stays while its pipe pauses is utilisation
		case k.Field == gpu.GREngineActive:
			busy = max(busy, duties[i])
		case k.IsRatio() && duties[i] > 0:
			busy = 1
		}
	}
	var state sim.State
	for _, g := range s.GPUs {
		for len(state.GPUs) <= g {
			state.GPUs = append(state.GPUs, sim.Busy(0, 0))
		}
		state.GPUs[g] = sim.Busy(100*busy, used)
		state.GPUs[g].Fields = fields
	}
	return s.target.write(ctx, state)
}

// ParseIndexes reads a list of indexes of simulated GPUs.
func ParseIndexes(text string) (out []int, err error) {
	for word := range strings.SplitSeq(text, ",") {
		i, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || i < 0 || i >= sim.MaxGPUs || slices.Contains(out, i) {
			return nil, fmt.Errorf("--gpu %q: want different indexes of 0 to %d", text, sim.MaxGPUs-1)
		}
		out = append(out, i)
	}
	return out, nil
}

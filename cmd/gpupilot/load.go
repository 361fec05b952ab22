// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpupilot/gpupilot/internal/loadgen/calibration"
	"github.com/gpupilot/gpupilot/internal/loadgen/cuda"
	"github.com/gpupilot/gpupilot/internal/loadgen/load"
	"github.com/gpupilot/gpupilot/internal/loadgen/load/worker"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

// loadCommand generates load.
func loadCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "load", Short: "Generate a known GPU load and measure it on the device"}
	cmd.AddCommand(loadGPUCommand(), loadSimCommand(), loadServerCommand(), loadWorkerCommand())
	return cmd
}

// loadWorkerCommand is the process of one GPU.
func loadWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use: "worker", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return load.Serve(cmd.Context(), os.Stdin, os.Stdout) },
	}
}

// loadFlags are the flags of load gpu that do not belong to a -t.
type loadFlags struct {
	args           load.Args
	host           load.Host
	gpus, output   string
	memory         string
	watts, celsius float64
	sources        []string // of --check
	calibrate      string
}

// loadGPUCommand loads GPUs.
func loadGPUCommand() *cobra.Command {
	f := &loadFlags{host: load.Host{Command: func() (*exec.Cmd, error) { return worker.Command("load", "worker") }}}
	cmd := &cobra.Command{
		Use:   "gpu -t LOAD",
		Short: "Load a GPU through the CUDA driver and report per step what the device measured",
		Long: `Load a GPU and report, for each step, what the field of the load should show. The device measures it: each block
of a kernel records its SM, its start, its end and its work. No CUDA toolkit and no root are needed.

A load is an id of dcgmproftester or a name; a + runs loads at the same time, a comma or another -t one after another:
` + load.KindList() + `
dcgmproftester's arguments are accepted. With several -t, options belong to the -t before them if an option stands
behind the last -t, else to the -t behind them.

Exit codes: 1 wrong arguments, or a source of --check is wrong, 2 cannot be made or measured here, 3 GPU lost or hung,
4 uncorrectable memory error, 5 kernel failed, 6 another process has the GPU for itself, 7 not enough memory, 8 driver
too old or not the kernel's, 9 no driver or no GPU, 10 kernel not compiled, 11 --power-max or --temp-max was reached,
130 interrupted.`,
		Example: `  gpupilot load gpu -t 1004 -d 120
  gpupilot load gpu -t fp32 --steps 0.2,0.4,0.6,0.8,1:10s
  gpupilot load gpu -t tensor+dram --duty tensor=0.6 --sine dram=0.2:0.8:30s -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.define(cmd)
	return cmd
}

func (f *loadFlags) define(cmd *cobra.Command) {
	p := cmd.Flags()
	p.StringVar(&f.gpus, "gpu", "all", "GPUs: indexes, UUIDs, PCI addresses, UUIDs of MIG instances")
	p.StringVarP(&f.gpus, "gpuIds", "i", "all", "as --gpu")
	p.Lookup("gpuIds").Hidden = true
	p.StringVar(&f.memory, "memory", "1Gi", "most memory of the GPU to use")
	p.Float64Var(&f.watts, "power-max", 0, "end when the GPU draws more (W)")
	p.Float64Var(&f.celsius, "temp-max", 0, "end when the GPU is hotter (°C)")
	p.StringVar(&f.host.Library, "cuda-library", cuda.DefaultLibrary, "CUDA driver library")
	p.StringVar(&f.host.NVML, "nvml-library", cuda.DefaultNVML, "NVML library, for power, temperature and throttling")
	p.StringVar(&f.calibrate, "calibrate", "", "FILE to write a table of the model to: field ↔ TFLOP/s or GB/s ↔ W; without -t, of each pipe at 5 duties")
	f.defineShared(p)
	f.args.DefineForeign(p)
}

// defineShared defines the flags that simulated GPUs have too.
func (f *loadFlags) defineShared(p *pflag.FlagSet) {
	f.args.Define(p, readReplay)
	p.StringVarP(&f.output, "output", "o", "table", "table or json (a line per step, and with --check per comparison)")
	p.StringArrayVar(&f.sources, "check", nil, checkHelp)
}

// readReplay reads counts as a shape.
func readReplay(path string) (load.Shape, error) {
	counts, err := trace.OpenCounts(path, "")
	if err != nil {
		return load.Shape{}, err
	}
	var seconds, n []float64
	for _, c := range counts {
		seconds, n = append(seconds, c.At), append(n, c.N)
	}
	return load.ReplayOf(seconds, n)
}

// begin reads the flags that simulated GPUs have too, and returns where steps are printed.
func (f *loadFlags) begin(cmd *cobra.Command) ([]load.Sequence, *load.Output, error) {
	sequences, notes, err := f.args.Sequences()
	if err != nil {
		return nil, nil, err
	}
	if f.output != "table" && f.output != "json" {
		return nil, nil, fmt.Errorf("--output %q: want table or json", f.output)
	}
	for _, text := range notes {
		note(cmd, text)
	}
	file, isFile := screen(cmd).(*os.File)
	return sequences, load.NewOutput(screen(cmd), f.output == "json", isFile && term.IsTerminal(int(file.Fd())), sequences), nil
}

// note tells the user something that is no output.
func note(cmd *cobra.Command, text string) { fmt.Fprintln(cmd.ErrOrStderr(), "gpupilot:", text) }

func (f *loadFlags) run(cmd *cobra.Command) error {
	if f.calibrate != "" {
		if err := f.args.SelectCalibration(); err != nil {
			return err
		}
	}
	sequences, out, err := f.begin(cmd)
	if err != nil {
		return err
	}
	memory, err := resource.ParseQuantity(f.memory)
	if err != nil || memory.Sign() <= 0 {
		return fmt.Errorf("--memory %q: want a quantity such as 1Gi", f.memory)
	}
	ctx := cmd.Context()
	chosen, all, err := f.host.Choose(ctx, f.gpus)
	if err != nil {
		return f.explain(ctx, err)
	}
	bounds := load.Bounds{MemoryBytes: uint64(memory.Value()), MaxWatts: f.watts, MaxCelsius: f.celsius}
	return f.checked(cmd, sequences, func(took func(load.Step)) error {
		defer out.Close()
		var table calibration.Calibrator
		err := f.explain(ctx, f.host.Run(ctx, chosen, all, sequences, bounds, func(m load.Message) error {
			switch {
			case m.Step != nil:
				took(*m.Step)
				table.Add(*m.Step)
				return out.Step(*m.Step)
			case m.Note != "":
				note(cmd, m.Note)
			}
			return nil
		}))
		if err != nil || f.calibrate == "" {
			return err
		}
		return table.Write(f.calibrate)
	})
}

// explain adds what was looked for to an error of a machine without a GPU.
func (f *loadFlags) explain(ctx context.Context, err error) error {
	if failure := load.Explained(err, f.host.Library); failure != nil {
		return failure
	}
	if ctx.Err() != nil {
		return interrupted("interrupted: nothing is left on the GPU")
	}
	return err
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpupilot/gpupilot/internal/gpu/cuda"
	"github.com/gpupilot/gpupilot/internal/gpu/load"
	"github.com/gpupilot/gpupilot/internal/gpu/load/worker"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

// loadCommand generates load.
func loadCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "load", Short: "Generate a known GPU load and measure it on the device"}
	cmd.AddCommand(loadGPUCommand(), loadWorkerCommand())
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
` + loadList() + `
dcgmproftester's arguments are accepted. With several -t, options belong to the -t before them if an option stands
behind the last -t, else to the -t behind them.

Exit codes: 2 cannot be made or measured here, 3 GPU lost or hung, 4 uncorrectable memory error, 5 kernel failed, 6 another
process has the GPU for itself, 7 not enough memory, 8 driver too old or not the kernel's, 9 no driver or no GPU, 10 kernel
not compiled, 11 --power-max or --temp-max was reached, 130 interrupted.`,
		Example: `  gpupilot load gpu -t 1004 -d 120
  gpupilot load gpu -t fp32 --steps 0.2,0.4,0.6,0.8,1:10s
  gpupilot load gpu -t tensor+dram --duty tensor=0.6 --sine dram=0.2:0.8:30s -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.define(cmd)
	return cmd
}

// loadList is the kinds of load for the help.
func loadList() (text string) {
	for _, k := range load.Kinds() {
		text += fmt.Sprintf("  %d  %-13s %s\n", k.Field, k.Name, k.Help)
	}
	return text
}

func (f *loadFlags) define(cmd *cobra.Command) {
	p := cmd.Flags()
	p.VarP(f.args.Test(), "load", "t", "what to load: ids, names, all, nonvlink or nvlink")
	p.VarP(f.args.Duration(), "duration", "d", "how long, in seconds or as 2m (default: the length of the shape, or 30s)")
	p.VarP(f.args.Report(), "report", "r", "length of a step (default 1s)")
	p.StringVar(&f.gpus, "gpu", "all", "GPUs: indexes, UUIDs, PCI addresses, UUIDs of MIG instances")
	p.StringVarP(&f.gpus, "gpuIds", "i", "all", "as --gpu")
	for _, s := range []struct {
		form load.Form
		help string
	}{
		{load.Constant, "share of the load, 0 to 1"},
		{load.Ramp, "FROM:TO:TIME"},
		{load.Steps, "A,B,C:TIME, each for TIME"},
		{load.Sine, "LOW:HIGH:PERIOD"},
		{load.Burst, "HIGH:ON:OFF[:LOW]"},
		{load.Replay, "CSV file with the columns t_s and requests; the highest rate is the whole load"},
	} {
		name := string(s.form)
		if s.form == load.Constant {
			name = "duty"
		}
		p.Var(f.args.Shape(s.form, readReplay), name, s.help+"; LOAD=… for one of several loads")
	}
	p.StringVar(&f.memory, "memory", "1Gi", "most memory of the GPU to use")
	p.Float64Var(&f.watts, "power-max", 0, "end when the GPU draws more (W)")
	p.Float64Var(&f.celsius, "temp-max", 0, "end when the GPU is hotter (°C)")
	p.StringVarP(&f.output, "output", "o", "table", "table or json (a line per step)")
	p.StringVar(&f.host.Library, "cuda-library", cuda.DefaultLibrary, "CUDA driver library")
	p.StringVar(&f.host.NVML, "nvml-library", cuda.DefaultNVML, "NVML library, for power, temperature and throttling")
	f.defineForeign(cmd)
}

// defineForeign defines the rest of dcgmproftester's arguments.
func (f *loadFlags) defineForeign(cmd *cobra.Command) {
	p := cmd.Flags()
	p.Bool("no-dcgm-validation", false, "as without it: nothing is compared")
	full := p.VarPF(f.args.Full(), "target-max-value", "", "the whole load all the time, as without a shape")
	full.NoOptDefVal = "true"
	p.Var(f.args.Test(), "fieldId", "as --load")
	const compares = "this command does not compare; it reports what is generated"
	for _, a := range []struct{ name, short, why string }{
		{"match-value", "m", compares},
		{"min-value", "", compares},
		{"max-value", "", compares},
		{"percent-tolerance", "", compares},
		{"absolute-tolerance", "a", compares},
		{"wait-to-check", "w", compares},
		{"mode", "", "loads are always made and reported"},
		{"max-processes", "", "each GPU has one process"},
		{"sync-count", "", "the device's stamps synchronise"},
		{"config", "c", "it is a file of dcgmproftester's"},
		{"log-file", "", "errors go to the standard error"},
		{"log-level", "", "errors go to the standard error"},
	} {
		p.VarP(f.args.Ignored(a.name, a.why), a.name, a.short, "of dcgmproftester; no effect")
	}
	for _, a := range []struct{ name, why string }{
		{"cublas", "no CUDA toolkit is used"}, {"dvs", "use -o json"}, {"reset", "options hold until another one replaces them"},
	} {
		p.VarPF(f.args.Ignored(a.name, a.why), a.name, "", "of dcgmproftester; no effect").NoOptDefVal = "true"
	}
	for _, name := range []string{
		"gpuIds", "fieldId", "no-dcgm-validation", "target-max-value", "match-value", "min-value", "max-value",
		"percent-tolerance", "absolute-tolerance", "wait-to-check", "mode", "max-processes", "sync-count", "config", "log-file", "log-level",
		"cublas", "dvs", "reset",
	} {
		_ = p.MarkHidden(name) // it is defined above
	}
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

func (f *loadFlags) run(cmd *cobra.Command) error {
	sequences, notes, err := f.args.Sequences()
	if err != nil {
		return err
	}
	memory, err := resource.ParseQuantity(f.memory)
	if err != nil || memory.Sign() <= 0 {
		return fmt.Errorf("--memory %q: want a quantity such as 1Gi", f.memory)
	}
	if f.output != "table" && f.output != "json" {
		return fmt.Errorf("--output %q: want table or json", f.output)
	}
	note := func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), "gpupilot:", text) }
	for _, text := range notes {
		note(text)
	}
	ctx := cmd.Context()
	chosen, all, err := f.host.Choose(ctx, f.gpus)
	if err != nil {
		return f.explain(ctx, err)
	}
	file, isFile := cmd.OutOrStdout().(*os.File)
	out := load.NewOutput(cmd.OutOrStdout(), f.output == "json", isFile && term.IsTerminal(int(file.Fd())), sequences)
	defer out.Close()
	bounds := load.Bounds{MemoryBytes: uint64(memory.Value()), MaxWatts: f.watts, MaxCelsius: f.celsius}
	return f.explain(ctx, f.host.Run(ctx, chosen, all, sequences, bounds, func(m load.Message) error {
		switch {
		case m.Step != nil:
			return out.Step(*m.Step)
		case m.Note != "":
			note(m.Note)
		}
		return nil
	}))
}

// explain adds what was looked for to an error of a machine without a GPU.
func (f *loadFlags) explain(ctx context.Context, err error) error {
	var failure *load.Failure
	if errors.As(err, &failure) && failure.Code == load.ExitNoGPU {
		return &load.Failure{Code: failure.Code, Message: failure.Message + "\n" + load.LookedFor("/", f.host.Library)}
	}
	if ctx.Err() != nil && failure == nil {
		return interrupted("interrupted: nothing is left on the GPU")
	}
	return err
}

// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"strconv"

	"github.com/spf13/pflag"
)

// Define defines the flags that say what is loaded, and how. read reads a replay's file.
func (a *Args) Define(p *pflag.FlagSet, read func(path string) (Shape, error)) {
	p.VarP(a.Test(), "load", "t", "what to load: ids, names, all, nonvlink or nvlink")
	p.VarP(a.Duration(), "duration", "d", "how long, in seconds or as 2m (default: the length of the shape, or 30s)")
	p.VarP(a.Report(), "report", "r", "length of a step (default 1s)")
	for _, s := range []struct {
		name string
		form Form
		help string
	}{
		{"duty", Constant, "share of the load, 0 to 1"},
		{"ramp", Ramp, "FROM:TO:TIME"},
		{"steps", Steps, "A,B,C:TIME, each for TIME"},
		{"sine", Sine, "LOW:HIGH:PERIOD"},
		{"burst", Burst, "HIGH:ON:OFF[:LOW]"},
		{"replay", Replay, "CSV file with the columns t_s and requests; the highest rate is the whole load"},
	} {
		p.Var(a.Shape(s.form, read), s.name, s.help+"; LOAD=… for one of several loads")
	}
	p.Var(a.percentTolerance(), "percent-tolerance", "how far a source of --check may be off, in percent of the whole load (default 5; 15 for traffic)")
}

// percentTolerance is how far a source may be off.
func (a *Args) percentTolerance() *Flag {
	return &Flag{kind: "percent", set: func(text string) error {
		percent, err := strconv.ParseFloat(text, 64)
		if err != nil || !(percent > 0 && percent <= 100) {
			return fmt.Errorf("want more than 0, and at most 100")
		}
		a.Tolerance = percent / 100
		return nil
	}}
}

// DefineForeign defines the rest of dcgmproftester's arguments. The help does not show them.
func (a *Args) DefineForeign(p *pflag.FlagSet) {
	hide := func(f *pflag.Flag) { f.Hidden = true }
	hide(p.VarPF(a.Test(), "fieldId", "", "as --load"))
	full := p.VarPF(a.Full(), "target-max-value", "", "the whole load all the time, as without a shape")
	full.NoOptDefVal = "true"
	hide(full)
	p.Bool("no-dcgm-validation", false, "as without --check: nothing is compared")
	hide(p.Lookup("no-dcgm-validation"))
	const compares = "--check compares, within --percent-tolerance"
	for _, f := range []struct{ name, short, why string }{
		{"match-value", "m", compares},
		{"min-value", "", compares},
		{"max-value", "", compares},
		{"absolute-tolerance", "a", compares},
		{"wait-to-check", "w", "a source's lag is measured"},
		{"mode", "", "loads are always made and reported"},
		{"max-processes", "", "each GPU has one process"},
		{"sync-count", "", "the device's stamps synchronise"},
		{"config", "c", "it is a file of dcgmproftester's"},
		{"log-file", "", "errors go to the standard error"},
		{"log-level", "", "errors go to the standard error"},
	} {
		hide(p.VarPF(a.Ignored(f.name, f.why), f.name, f.short, "of dcgmproftester; no effect"))
	}
	for _, f := range []struct{ name, why string }{
		{"cublas", "no CUDA toolkit is used"}, {"dvs", "use -o json"}, {"reset", "options hold until another one replaces them"},
	} {
		flag := p.VarPF(a.Ignored(f.name, f.why), f.name, "", "of dcgmproftester; no effect")
		flag.NoOptDefVal = "true"
		hide(flag)
	}
}

// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Args collects options and selections in the order of the command line, as dcgmproftester's arguments work: options
// belong to a -t. Its flags are flag values for package pflag.
type Args struct {
	Tolerance float64 // of --percent-tolerance, as a share; 0: not given

	given []given
	notes []string
}

// given is one flag of the command line.
type given struct {
	test []Selection       // of -t
	set  func(o *settings) // of an option
}

// settings are the options that belong to a selection.
type settings struct {
	duration, report time.Duration
	shapes           map[string]Shape // by kind; "" is for all others
}

// Flag is a flag's value.
type Flag struct {
	kind string // for the help
	text string
	set  func(text string) error
}

// String returns the last value.
func (f *Flag) String() string { return f.text }

// Type names the value in the help.
func (f *Flag) Type() string { return f.kind }

// Set reads a value. Scripts and manifests have "-t 1004" in one argument: the value then begins with a blank.
func (f *Flag) Set(text string) error {
	f.text = strings.TrimSpace(text)
	return f.set(f.text)
}

// Test returns the value of -t.
func (a *Args) Test() *Flag {
	return &Flag{kind: "ids", set: func(text string) error {
		list, err := ParseKinds(text)
		a.given = append(a.given, given{test: list})
		return err
	}}
}

// option is a flag that belongs to a -t.
func (a *Args) option(kind string, parse func(text string) (func(o *settings), error)) *Flag {
	return &Flag{kind: kind, set: func(text string) error {
		set, err := parse(text)
		a.given = append(a.given, given{set: set})
		return err
	}}
}

// Duration returns the value of -d.
func (a *Args) Duration() *Flag {
	return a.option("duration", func(text string) (func(o *settings), error) {
		d, err := Duration(text)
		if err == nil && d < slice {
			err = fmt.Errorf("want at least %v", slice)
		}
		return func(o *settings) { o.duration = d }, err
	})
}

// leastReport is the shortest step: five slices.
const leastReport = 5 * slice

// Report returns the value of -r.
func (a *Args) Report() *Flag {
	return a.option("duration", func(text string) (func(o *settings), error) {
		d, err := Duration(text)
		if err == nil && d < leastReport {
			err = fmt.Errorf("want at least %v", leastReport)
		}
		return func(o *settings) { o.report = d }, err
	})
}

// Shape returns the value of a shape's flag. A value for one of several kinds begins with its name and =. read reads a
// replay's file.
func (a *Args) Shape(form Form, read func(path string) (Shape, error)) *Flag {
	return a.option(string(form), func(text string) (func(o *settings), error) {
		name, value, named := strings.Cut(text, "=")
		if k, err := parseKind(strings.ToLower(name)); named && err == nil {
			name = k.Name
		} else {
			name, value = "", text
		}
		var s Shape
		var err error
		if form == Replay {
			s, err = read(value)
		} else {
			s, err = ParseShape(form, value)
		}
		return func(o *settings) {
			o.shapes = maps.Clone(o.shapes)
			o.shapes[name] = s
		}, err
	})
}

// Ignored returns the value of an argument of dcgmproftester's that has no effect here, and says so in the notes.
func (a *Args) Ignored(name, why string) *Flag {
	return &Flag{kind: "value", set: func(string) error {
		if note := "--" + name + " has no effect: " + why; !slices.Contains(a.notes, note) {
			a.notes = append(a.notes, note)
		}
		return nil
	}}
}

// Full returns the value of --target-max-value: the whole load all the time.
func (a *Args) Full() *Flag {
	return a.option("bool", func(string) (func(o *settings), error) {
		return func(o *settings) { o.shapes = map[string]Shape{"": Full()} }, nil
	})
}

// DefaultDuration is how long a load takes whose shape does not say.
const DefaultDuration = 30 * time.Second

// Sequences returns what to run, one after the other, and what the user should know.
//
// With one -t all options belong to it. With several, options belong to the -t before them if any option stands behind
// the last -t, else to the -t behind them. They hold until another one replaces them.
func (a *Args) Sequences() ([]Sequence, []string, error) {
	tests := 0
	for _, g := range a.given {
		if g.test != nil {
			tests++
		}
	}
	if tests == 0 {
		return nil, a.notes, fmt.Errorf("no load is selected: give -t with an id or a name, such as -t 1004 or -t tensor")
	}
	behind := tests == 1 || a.given[len(a.given)-1].test == nil // options stand behind their -t
	o := settings{report: time.Second, shapes: map[string]Shape{}}
	var out []Sequence
	var pending []Selection
	add := func() error {
		for _, s := range pending {
			q, err := o.sequence(s)
			if err != nil {
				return err
			}
			out = append(out, q)
		}
		pending = nil
		return nil
	}
	for _, g := range a.given {
		if g.test == nil {
			g.set(&o)
			continue
		}
		if err := add(); err != nil {
			return nil, nil, err
		}
		pending = g.test
		if !behind {
			if err := add(); err != nil {
				return nil, nil, err
			}
		}
	}
	err := add()
	return out, a.notes, err
}

// vectorDuty is the load of one vector-add: a second process doubles it, as in the walkthrough.
const vectorDuty = 0.25

// sequence gives a selection its settings.
func (o *settings) sequence(s Selection) (Sequence, error) {
	q := Sequence{Shapes: map[string]Shape{}, Duration: o.duration, Report: o.report}
	var longest time.Duration
	for _, k := range s {
		shape, ok := o.shapes[k.Name]
		if !ok {
			shape, ok = o.shapes[""]
		}
		switch {
		case !ok && k.Name == VectorAdd:
			shape = Shape{Form: Constant, Values: []float64{vectorDuty}}
		case !ok:
			shape = Full()
		}
		q.Kinds = append(q.Kinds, k.Name)
		q.Shapes[k.Name] = shape
		longest = max(longest, shape.Length())
	}
	if q.Duration == 0 {
		q.Duration = longest
	}
	if q.Duration == 0 {
		q.Duration = DefaultDuration
	}
	return q, nil
}

// calibrated are the loads of a calibration that names none, and their shape.
const (
	calibrated      = "tensor,fp32,fp64,fp16,dram,sm-active"
	calibratedSteps = "0.2,0.4,0.6,0.8,1:5s"
)

// SelectCalibration selects the loads and the shape of a calibration, if nothing is selected.
func (a *Args) SelectCalibration() error {
	if slices.ContainsFunc(a.given, func(g given) bool { return g.test != nil }) {
		return nil
	}
	if err := a.Test().Set(calibrated); err != nil {
		return err
	}
	return a.Shape(Steps, nil).Set(calibratedSteps)
}

// SplitArguments splits arguments that hold several flags, as manifests have them: "--no-dcgm-validation -t 1004". The
// value of a flag is not split.
func SplitArguments(args []string) []string {
	var out []string
	for _, arg := range args {
		words := strings.Fields(arg)
		if !strings.HasPrefix(arg, "-") || len(words) < 2 || strings.Contains(words[0], "=") {
			out = append(out, arg)
			continue
		}
		out = append(out, words...)
	}
	return out
}

// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/loadgen/load"
	"github.com/gpupilot/gpupilot/internal/loadgen/verdict"
)

// Run runs a load, compares the sources with the steps that it took, and prints the results, as JSON lines or as a table.
// It returns the load's own error if there is one.
func (c *Check) Run(ctx context.Context, sequences []load.Sequence, out io.Writer, asJSON bool, run func(took func(load.Step)) error) error {
	if len(c.watches) == 0 {
		return run(func(load.Step) {})
	}
	stop := c.Watch(ctx, sequences)
	err := run(c.Step)
	stop()
	results := c.Results()
	printed := Print(out, results, asJSON)
	switch {
	case err != nil:
		return err
	case printed != nil:
		return printed
	}
	return Failure(results)
}

// Line is a result as a JSON line: between the lines of steps, which have no key check.
type Line struct {
	Check *Result `json:"check"`
}

// Print writes results as JSON lines or as a table.
func Print(out io.Writer, results []Result, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(out)
		for _, r := range results {
			if err := encoder.Encode(Line{&r}); err != nil {
				return err
			}
		}
		return nil
	}
	if len(results) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nSOURCE\tLOAD\tFIELD\tGPU\tBIAS\tLAG\tVERDICT")
	for _, r := range results {
		fmt.Fprintln(t, strings.Join([]string{
			printable(r.Source), r.Load, r.Field, printable(r.GPU), number("%+.3g", r.Bias), number("%.1f s", r.Lag), printable(r.String()),
		}, "\t"))
	}
	return t.Flush()
}

func number(format string, v *float64) string {
	if v == nil {
		return "-"
	}
	if math.Abs(*v) < 1e-9 { // the rest of a sum
		return fmt.Sprintf(format, 0.0)
	}
	return fmt.Sprintf(format, *v)
}

// printable replaces control characters: what a source says must not reach a terminal as it is.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, excerpt.Of(s, 300))
}

// Failure returns why a check does not pass: exit code 1 if a source is wrong, 2 if one could not be measured.
func Failure(results []Result) error {
	wrong, unmeasured := 0, 0
	for _, r := range results {
		switch {
		case r.Finding == verdict.Unmeasured:
			unmeasured++
		case !r.Finding.IsTrue():
			wrong++
		}
	}
	switch {
	case wrong > 0:
		return &load.Failure{Code: load.ExitOff, Message: fmt.Sprintf("check: %d of %d comparisons are wrong", wrong, len(results))}
	case unmeasured > 0 || len(results) == 0:
		return &load.Failure{Code: load.ExitUnmeasured, Message: fmt.Sprintf("check: %d of %d comparisons could not be measured", unmeasured, len(results))}
	}
	return nil
}

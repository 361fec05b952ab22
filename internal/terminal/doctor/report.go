// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/gpupilot/gpupilot/internal/terminal/termtext"
)

// Report is the outcome of all checks, as JSON.
type Report struct {
	Version  string   `json:"version"` // of this program
	Cluster  string   `json:"cluster,omitempty"`
	Checks   []Result `json:"checks"`
	Errors   int      `json:"errors"`   // checks that failed
	Warnings int      `json:"warnings"` // likewise
	Unknown  int      `json:"couldNotCheck"`
}

// NewReport counts results.
func NewReport(version, cluster string, results []Result) *Report {
	r := &Report{Version: version, Cluster: cluster, Checks: results}
	for i := range results {
		switch c := &results[i]; {
		case c.Status == Unknown:
			r.Unknown++
		case c.Status == Failed && c.Level == Error:
			r.Errors++
		case c.Status == Failed:
			r.Warnings++
		}
	}
	return r
}

// Report gathers facts, runs the checks on them, and returns both.
func (w *Where) Report(ctx context.Context, checks []Check, pre bool, version, cluster string) (*Report, *Facts) {
	facts := w.Gather(ctx, pre)
	return NewReport(version, cluster, Run(checks, facts)), facts
}

// JSON writes the report as JSON.
func (r *Report) JSON(out io.Writer) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// Text writes the report for people: what failed with its objects, what it breaks and what to do.
func (r *Report) Text(out io.Writer) error {
	var b bytes.Buffer
	group := Group("")
	for i := range r.Checks {
		c := &r.Checks[i]
		if c.Group != group {
			group = c.Group
			fmt.Fprintln(&b, group)
		}
		mark := map[Status]string{Passed: "ok", Unknown: "?", Failed: strings.ToUpper(string(c.Level))}[c.Status]
		fmt.Fprintf(&b, "  %-7s  %s  %s", mark, c.Code, c.Title)
		if c.Status == Passed && c.Looked != "" {
			fmt.Fprintf(&b, " (%s)", c.Looked)
		}
		fmt.Fprintln(&b)
		if c.Reason != "" {
			fmt.Fprintf(&b, "                  could not check: %s\n", termtext.Clean(c.Reason))
		}
		for _, f := range c.Findings {
			fmt.Fprintf(&b, "                  %s: %s\n", termtext.Clean(f.Object), termtext.Clean(f.Message))
		}
		if c.Omitted > 0 {
			fmt.Fprintf(&b, "                  and %d more\n", c.Omitted)
		}
		if c.Fix != "" {
			fmt.Fprintf(&b, "                  fix: %s (%s)\n", c.Fix, c.Docs)
		}
	}
	passed := len(r.Checks) - r.Errors - r.Warnings - r.Unknown
	fmt.Fprintf(&b, "\n%d checks: %d ok, %d errors, %d warnings, %d could not be checked\n", len(r.Checks), passed, r.Errors, r.Warnings, r.Unknown)
	_, err := out.Write(b.Bytes())
	return err
}

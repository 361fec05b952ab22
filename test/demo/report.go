// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// printSummary writes the final table of a demo.
func printSummary(w io.Writer, labels []string, t *track, a, b summary) {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	row := func(cells ...string) { fmt.Fprintln(tw, "  "+strings.Join(cells, "\t")) }
	row("", llm, classic)
	row("", labels[0], labels[1])
	row("load rises → first scale-up", a.scaleUp.String(), b.scaleUp.String())
	row("load rises → its peak is served", a.served.String(), b.served.String())
	row(fmt.Sprintf("load has fallen → back to %d", t.least), a.back.String(), b.back.String())
	row("peak replicas (the load needed)", peaks(a), peaks(b))
	over := "time over target"
	if t.full > target {
		over = "time beyond the limits"
	}
	row(fmt.Sprintf("%s (> %.0f %%)", over, t.over()), seconds(a.overTarget.Seconds()), seconds(b.overTarget.Seconds()))
	row(fmt.Sprintf("missed %v to the first token or %v a token", firstLimit, tokenLimit), percent(a.missed), percent(b.missed))
	row("requests turned away", fmt.Sprintf("%.0f", a.rejected), fmt.Sprintf("%.0f", b.rejected))
	row("GPU seconds held", fmt.Sprintf("%.0f", a.replicaSeconds), fmt.Sprintf("%.0f", b.replicaSeconds))
	_ = tw.Flush() // to the terminal
}

func peaks(s summary) string   { return fmt.Sprintf("%d (%d)", s.peak, s.need) }
func percent(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }
func seconds(s float64) string { return fmt.Sprintf("%.1f s", s) }

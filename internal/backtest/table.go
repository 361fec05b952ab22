// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Table writes a report for a terminal.
func (r *Report) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "trace\tmodel\tstart-up\tpolicy\tviolations\tfront\tratio\tGPU-hours\toracle\tcost\tunder\tover\tovershoot\tturns/h\tfront\tkilled\tcascades\treaction")
	for i := range r.Cells {
		c := &r.Cells[i]
		fmt.Fprintf(t, "%s\t%s\t%gs\t%s\t%.2f%%\t%s\t%s\t%.1f\t%.1f\t%s\t%.0f%%\t%.0f%%\t%.2f\t%.1f\t%.1f\t%d\t%d\t%.0fs\n",
			c.Trace, c.Model, c.Startup, c.Ours, c.Violations, r.against(c.Front, "%.2f%%"), r.against(c.Ratio, "%.2f"), c.GPUHours, c.Oracle,
			dollars(c.GPUHours, r.price(c.Model)), c.Under, c.Over, c.Overshoot, c.Turns, c.FrontTurns, c.Killed, c.Cascades, c.Reaction)
	}
	if err := t.Flush(); err != nil || len(r.Peers) == 0 {
		return err
	}
	for _, part := range r.Parts {
		fmt.Fprintf(w, "\n%s\n", part.Name)
		t = tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
		fmt.Fprintln(t, "policy\tclass\tcells\tgeometric mean\tp95\tworst\twhere\tviolations\tfront\tregret\tturns/h\tfront\tkilled\tcascades")
		for _, s := range part.Summaries {
			fmt.Fprintf(t, "%s\t%s\t%d\t%.2f\t%.2f\t%.2f\t%s\t%.2f%%\t%.2f%%\t%+.0f%%\t%.1f\t%.1f\t%d\t%d\n",
				s.Ours, s.Class, s.Cells, s.Geometric, s.P95, s.Worst, s.WorstCell, s.Violations, s.Front, 100*s.Regret, s.Turns, s.FrontTurns, s.Killed, s.Cascades)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// against formats what is only there with peers.
func (r *Report) against(x float64, format string) string {
	if len(r.Peers) == 0 {
		return "-"
	}
	return fmt.Sprintf(format, x)
}

// WriteResults writes single results for a terminal.
func WriteResults(w io.Writer, results []Result, price float64) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "policy\tviolations\tTTFT\tITL\tgave up\tGPU-hours\tcost\tunder\tover\tovershoot\tturns/h\tkilled\tcascades\treaction")
	for i := range results {
		r := &results[i]
		fmt.Fprintf(t, "%s\t%.2f%%\t%.2f%%\t%.2f%%\t%.2f%%\t%.1f\t%s\t%.0f%%\t%.0f%%\t%.2f\t%.1f\t%d\t%d\t%.0fs\n",
			r.Name, r.Violations, r.Late, r.Slow, r.GaveUp, r.GPUHours, dollars(r.GPUHours, price), r.Under, r.Over, r.Overshoot, r.Turns, r.Killed, r.Cascades, r.Reaction)
	}
	return t.Flush()
}

func dollars(gpuHours, price float64) string {
	if price <= 0 {
		return "-"
	}
	return fmt.Sprintf("$%.0f", gpuHours*price)
}

// SPDX-License-Identifier: Apache-2.0

package arena

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Report is the published match and its extensions.
type Report struct {
	Tables []*Table `json:"tables"`
}

// Write writes the tables as text.
func (r *Report) Write(w io.Writer) error {
	var b strings.Builder
	for _, t := range r.Tables {
		t.write(&b)
	}
	b.WriteString(legend)
	_, err := io.WriteString(w, b.String())
	return err
}

const legend = `good/GPU-s: requests within both limits ÷ GPU-seconds until the last answer; good rate: their share of all
GPUs: mean of starting, ready and draining workers; *: on the front, nobody has as many good requests with fewer GPUs
rank: mean over the loads by good/GPU-s, 1 is best; wins: share of the comparisons with another contender
rank 85%: among those with a good rate of 85 % or more
kept, rank 95% and 99%: loads with at least this good rate, and the mean rank if a load below it counts as 0
beaten: loads on which another contender has at least as many good requests with no more GPUs
`

// Title says how the match was played.
func (s *Setting) Title() string {
	name := "published"
	if *s != Published() {
		name = "extended"
	}
	lag := "no scrape lag"
	if s.Scrape > 0 {
		lag = fmt.Sprintf("Prometheus scrapes each %d s", s.Scrape)
	}
	return fmt.Sprintf("%s: %g s, workers at first: %d, starts of %g s, %s", name, traceSeconds*s.Stretch, s.First, s.Startup, lag)
}

func (t *Table) write(b *strings.Builder) {
	fmt.Fprintf(b, "%s; loads: %d, seeds: %d\n", t.Title(), len(t.Loads), t.Seeds)
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "\tgood/GPU-s\tgood rate\tGPUs\trank\twins\trank 85%\t")
	for _, floor := range floors() {
		fmt.Fprintf(w, "kept %.0f%%\trank %.0f%%\t", 100*floor, 100*floor)
	}
	fmt.Fprintln(w)
	for i := range t.Rows {
		r := &t.Rows[i]
		mark, safe := " ", "-"
		if r.OnFront {
			mark = "*"
		}
		if r.SafeRank > 0 {
			safe = fmt.Sprintf("%.2f", r.SafeRank)
		}
		fmt.Fprintf(w, "%-17s %s\t%.3f\t%.1f%%\t%.2f\t%.2f\t%.0f%%\t%s\t", r.Name, mark, r.GoodPerGPUSecond, 100*r.GoodRate, r.GPUs, r.MeanRank, 100*r.WinRate, safe)
		for _, f := range r.Floors {
			fmt.Fprintf(w, "%d\t%.2f\t", f.Kept, f.MeanRank)
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush() // to a strings.Builder
	for i := range t.Rows {
		t.Rows[i].writeLosses(b)
	}
	b.WriteString("\n")
}

func (r *Row) writeLosses(b *strings.Builder) {
	if !r.Ours {
		return
	}
	fmt.Fprintf(b, "%s beaten on %d of %d loads\n", r.Name, len(r.Losses), len(r.PerLoad))
	for _, l := range r.Losses {
		fmt.Fprintf(b, "  %s: %.1f%% with %.2f GPUs; %s has %.1f%% with %.2f\n",
			l.Load, 100*l.Ours.GoodRate, l.Ours.GPUs, l.To, 100*l.Their.GoodRate, l.Their.GPUs)
	}
}

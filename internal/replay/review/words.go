// SPDX-License-Identifier: Apache-2.0

package review

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/replay/backtest"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// answer makes the answer of the cases.
func (p *plan) answer(j *job, recorded *record, cases []backtest.Case, price float64) view.Backtest {
	hours := recorded.to.Sub(recorded.from).Hours()
	b := view.Backtest{
		State: view.BacktestDone, Time: time.Now(), From: recorded.from, To: recorded.to, Parts: len(cases), Objective: p.percent, Price: price,
	}
	if recorded.held > 0 {
		held := recorded.held * hours
		b.Recorded = &held
	}
	for i := range cases {
		b.Hours += cases[i].Hours
	}
	promises := (&backtest.Study{Ours: p.entries}).Promises(cases)
	own := &promises[0]
	for i := range promises {
		x := &promises[i]
		y := view.BacktestPolicy{Name: x.Contender, Missed: x.Missed, Kept: x.Kept, GPUHours: x.GPUHours(hours), More: 100 * (x.GPUHours(1)/math.Max(own.GPUHours(1), 1e-9) - 1)}
		if price > 0 {
			cost := price * y.GPUHours
			y.Cost = &cost
		}
		b.Policies = append(b.Policies, y)
	}
	b.Kept, b.Cost = keptText(own), costText(&b)
	if last := &promises[len(promises)-1]; last.Contender == hpaName {
		b.Saved = savedText(own, last)
	}
	b.Change = strings.ToUpper(own.Change[:1]) + strings.Replace(own.Change[1:], "--advise", fmt.Sprintf("gpupilot backtest --from-cluster %s/%s --advise", j.namespace, j.name), 1)
	b.Notes = p.notes(j, recorded)
	return b
}

func keptText(x *backtest.Promise) string {
	word := "Yes"
	switch {
	case x.Missed > 100-x.Percent:
		word = "No"
	case x.Kept < x.Replays:
		word = "On the mean"
	}
	text := fmt.Sprintf("%s: %.2f %% of the requests missed a limit", word, x.Missed)
	if x.Low != nil {
		text += fmt.Sprintf(" (95 %% interval %.2f to %.2f)", *x.Low, *x.High)
	}
	return text + fmt.Sprintf(", and %.4g %% may. Kept in %d of %d part%s of the history.", 100-x.Percent, x.Kept, x.Replays, plural(int32(x.Replays)))
}

func costText(b *view.Backtest) string {
	own := &b.Policies[0]
	text := fmt.Sprintf("%s GPU-hours in %s", rounded(own.GPUHours), days(b.To.Sub(b.From)))
	if own.Cost != nil {
		text += fmt.Sprintf(", $%s", rounded(*own.Cost))
	}
	if b.Recorded != nil {
		text += fmt.Sprintf(". The workload held %s", rounded(*b.Recorded))
	}
	return text + "."
}

func savedText(own, hpa *backtest.Promise) string {
	share := 100 * (1 - own.GPUHours(1)/math.Max(hpa.GPUHours(1), 1e-9))
	text := fmt.Sprintf("%.0f %% of the GPU-hours of an HPA with the same targets", share)
	if share < 0 {
		text = fmt.Sprintf("Nothing: %.0f %% more GPU-hours than an HPA with the same targets", -share)
	}
	switch kept := hpa.Missed <= 100-hpa.Percent; {
	case kept:
		return text + ", which keeps the objective too."
	default:
		return text + fmt.Sprintf(", which does not keep the objective: %.2f %% of its requests missed a limit.", hpa.Missed)
	}
}

// notes say what the replay assumes.
func (p *plan) notes(j *job, recorded *record) (out []string) {
	m := &p.config.Model
	out = append(out,
		fmt.Sprintf("The load is what the signals asked for at their targets, as means of minutes. What single requests were is not recorded: the server is a model (%s), whose requests miss over %.4g s to the first token or %.4g ms between tokens.",
			m.Name, m.TTFTLimit, 1000*m.ITLLimit),
		fmt.Sprintf("A start takes %.0f s at the median, and a replica has %d GPU%s.", p.startup, m.GPUs, plural(m.GPUs)))
	if recorded.gpus == 0 {
		out = append(out, "How many GPUs a replica has is not recorded: 1 is assumed.")
	}
	if p.missing > 0 {
		out = append(out, fmt.Sprintf("%d minutes are missing, and have the load of the minute before.", p.missing))
	}
	for _, note := range p.entries[0].Notes {
		out = append(out, strings.ToUpper(note[:1])+note[1:]+".")
	}
	for _, name := range p.queries {
		out = append(out, "The query "+name+" decides nothing in the replay.")
	}
	return append(out, fmt.Sprintf("More of it, with other servers and policies: gpupilot backtest --from-cluster %s/%s.", j.namespace, j.name))
}

// rounded formats a number with three digits, in groups.
func rounded(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.3g", v)
	}
	return backtest.GroupDigits(int(math.Round(v)))
}

func plural(n int32) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// days formats a duration.
func days(d time.Duration) string {
	if d < 48*time.Hour {
		return fmt.Sprintf("%.3g hours", d.Hours())
	}
	return fmt.Sprintf("%.3g days", d.Hours()/24)
}

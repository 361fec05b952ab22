// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/replay/service"
)

// fact is a property of a study, for the head of a report.
type fact struct{ Name, Text string }

// facts describes the load, its scale, the start-up times, the limits and the peers.
func (r *Report) facts() []fact {
	out := []fact{
		{"load", r.loadText()},
		{"scale", ScaleText(r.Cases)},
		{"start-up", strings.Join(startupTexts(r.Cases), ", ")},
	}
	for i := range r.Models {
		m := &r.Models[i]
		out = append(out, fact{"model", fmt.Sprintf("%s: a request misses over %g s to the first token or %s ms between tokens",
			m.Name, m.TTFTLimit, shortNumber(1000*m.ITLLimit))})
	}
	if n := len(r.Peers); n > 0 {
		text := fmt.Sprintf("%s of %s", count(n, "setting", "settings"), r.familiesText())
		if r.Quick {
			text += "; a first look: the gaps between them flatter the policies"
		}
		out = append(out, fact{"peers", text})
	}
	for _, n := range r.Notes {
		out = append(out, fact{"note", n})
	}
	return out
}

// loadText describes the traces and how much of them was replayed.
func (r *Report) loadText() string {
	traces := distinct(r.Cases, func(c *Case) string { return c.Trace })
	load := fmt.Sprintf("%d traces", len(traces))
	if len(traces) == 1 {
		load = shorten(traces[0], 40)
	}
	seeds := distinct(r.Cases, func(c *Case) uint64 { return c.Seed })
	return fmt.Sprintf("%s, %s in %s, %s", load, hoursText(totalHours(r.Cases)),
		count(len(r.Cases), "replay", "replays"), count(len(seeds), "seed", "seeds"))
}

// ScaleText describes how the recorded load was scaled.
func ScaleText(cases []Case) string {
	peaks := distinct(cases, func(c *Case) float64 { return c.Peak })
	if len(peaks) == 0 || slices.Max(peaks) == 0 {
		return "as recorded"
	}
	to := fmt.Sprintf("peaks of %.0f to %.0f replicas", slices.Min(peaks), slices.Max(peaks))
	if len(peaks) == 1 {
		to = "a peak of " + count(int(math.Round(peaks[0])), "replica", "replicas")
	}
	scales := distinct(cases, func(c *Case) float64 { return c.Scale })
	if least, most := slices.Min(scales), slices.Max(scales); least != most {
		return fmt.Sprintf("by %.3g to %.3g, to %s", least, most, to)
	}
	return fmt.Sprintf("by %.3g, to %s", scales[0], to)
}

func totalHours(cases []Case) (sum float64) {
	for i := range cases {
		sum += cases[i].Hours
	}
	return sum
}

// peerFamily is a family of peers with its name in reports.
type peerFamily struct {
	Family contender.Family
	Text   string
}

func peerFamilies() []peerFamily {
	return []peerFamily{{contender.HPA, "HPA"}, {contender.KEDA, "KEDA"}, {contender.KPA, "Knative"}, {contender.Named, "other LLM autoscalers"}, {contender.Published, "published guides"}}
}

// familiesText lists the replayed families of peers.
func (r *Report) familiesText() string {
	var out []string
	for _, f := range peerFamilies() {
		if slices.ContainsFunc(r.Peers, func(peer string) bool { return r.family[peer] == f.Family }) {
			out = append(out, f.Text)
		}
	}
	return enumerate(out)
}

func startupTexts(cases []Case) []string {
	return distinct(cases, func(c *Case) string { return fmt.Sprintf("%gs", c.Startup) })
}

// infeasibleShare is the share of infeasible requests above which a report mentions them.
const infeasibleShare = 0.01

// InfeasibleNotes returns a note for each load that has many infeasible requests: they miss
// the limit of the time to the first token even on an idle replica, and are not counted. It
// returns an error if no request is left.
func InfeasibleNotes(cases []Case, models []service.Model) (notes []string, err error) {
	type load struct{ trace, model string }
	feasible, infeasible, total := map[load]int{}, map[load]int{}, 0
	for i := range cases {
		c := &cases[i]
		l := load{c.Trace, c.Model}
		feasible[l] += c.Ours[0].Requests
		infeasible[l] += c.Ours[0].Infeasible
		total += c.Ours[0].Requests
	}
	for _, l := range distinct(cases, func(c *Case) load { return load{c.Trace, c.Model} }) {
		all := feasible[l] + infeasible[l]
		if float64(infeasible[l]) < infeasibleShare*float64(max(1, all)) {
			continue
		}
		limit := 0.0
		if i := slices.IndexFunc(models, func(m service.Model) bool { return m.Name == l.model }); i >= 0 {
			limit = models[i].TTFTLimit
		}
		notes = append(notes, fmt.Sprintf("%s: %d of %d requests cannot meet %v to the first token on an idle %s and are not counted",
			l.trace, infeasible[l], all, seconds(limit), l.model))
	}
	if len(notes) > 0 && total == 0 {
		return nil, fmt.Errorf("%s: no request is left to compare; give a longer --ttft, or another --model", strings.Join(notes, "; "))
	}
	return notes, nil
}

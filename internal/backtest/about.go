// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// fact is one thing about a study that a reader needs to know it by.
type fact struct{ Name, Text string }

// facts are what was replayed, against what, within which limits.
func (r *Report) facts() []fact {
	out := []fact{
		{"load", r.loads()},
		{"scale", Scale(r.Cases)},
		{"start-up", strings.Join(startups(r.Cases), ", ")},
	}
	for i := range r.Models {
		out = append(out, fact{"model", r.Models[i].Name + ": a request misses over " + r.Models[i].limits()})
	}
	if n := len(r.Peers); n > 0 {
		peers := fmt.Sprintf("%s of %s", many(n, "setting", "settings"), r.peerFamilies())
		if r.Quick {
			peers += "; a first look: the gaps between them flatter the policies"
		}
		out = append(out, fact{"peers", peers})
	}
	return out
}

// loads says what was replayed, and how much of it.
func (r *Report) loads() string {
	names := each(r.Cases, func(c *Case) string { return c.Trace })
	load := fmt.Sprintf("%d traces", len(names))
	if len(names) == 1 {
		load = cut(names[0], 40)
	}
	seeds := each(r.Cases, func(c *Case) uint64 { return c.Seed })
	return fmt.Sprintf("%s, %s in %s, %s", load, hoursText(r.totalHours()),
		many(len(r.Cases), "replay", "replays"), many(len(seeds), "seed", "seeds"))
}

// Scale says how large the load was made, for each replay against its recording.
func Scale(cases []Case) string {
	peaks := each(cases, func(c *Case) float64 { return c.Peak })
	if len(peaks) == 0 || slices.Max(peaks) == 0 {
		return "as recorded"
	}
	to := fmt.Sprintf("peaks of %.0f to %.0f replicas", slices.Min(peaks), slices.Max(peaks))
	if len(peaks) == 1 {
		to = "a peak of " + many(int(math.Round(peaks[0])), "replica", "replicas")
	}
	scales := each(cases, func(c *Case) float64 { return c.Scale })
	if least, most := slices.Min(scales), slices.Max(scales); least != most {
		return fmt.Sprintf("by %.3g to %.3g, to %s", least, most, to)
	}
	return fmt.Sprintf("by %.3g, to %s", scales[0], to)
}

func (r *Report) totalHours() (sum float64) {
	for i := range r.Cases {
		sum += r.Cases[i].Hours
	}
	return sum
}

// families are the peers' by their names, and how each is called.
var families = []fact{{"hpa", "HPA"}, {"keda", "KEDA"}, {"kpa", "Knative"}}

// peerFamilies lists those that were replayed.
func (r *Report) peerFamilies() string {
	var out []string
	for _, f := range families {
		if slices.ContainsFunc(r.Peers, func(peer string) bool { return r.family[peer] == f.Name }) {
			out = append(out, f.Text)
		}
	}
	return listed(out)
}

func startups(cases []Case) []string {
	return each(cases, func(c *Case) string { return fmt.Sprintf("%gs", c.Startup) })
}

// limits are what a request may take.
func (m *Model) limits() string {
	return fmt.Sprintf("%g s to the first token or %s ms between tokens", m.TTFTLimit, short(1000*m.ITLLimit))
}

// each is what f says of the items, every value once.
func each[E any, T comparable](items []E, f func(*E) T) (out []T) {
	for i := range items {
		if x := f(&items[i]); !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}

// commonest is the value that f gives most often, the first of several, and how often.
func commonest[E any](items []E, f func(*E) string) (value string, n int) {
	count := map[string]int{}
	for i := range items {
		count[f(&items[i])]++
	}
	value = slices.MaxFunc(each(items, f), func(a, b string) int { return cmp.Compare(count[a], count[b]) })
	return value, count[value]
}

// many counts things.
func many(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return grouped(n) + " " + more
}

func hoursText(h float64) string {
	switch {
	case h < 0.95:
		return many(int(math.Round(60*h)), "minute", "minutes")
	case h < 9.95 && math.Round(10*h) != 10:
		return fmt.Sprintf("%g hours", math.Round(10*h)/10)
	}
	return many(int(math.Round(h)), "hour", "hours")
}

// listed joins as a sentence does.
func listed(names []string) string {
	if n := len(names); n > 1 {
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
	return strings.Join(names, "")
}

// cut shortens a text to n characters.
func cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

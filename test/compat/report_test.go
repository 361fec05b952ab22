// SPDX-License-Identifier: Apache-2.0

package compat

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// group is one difference with all the places where it was found.
type group struct {
	finding
	because   string // what makes it intended
	times     int
	scenarios []string
}

// examples is how many differences of one intention are printed.
const examples = 3

// report prints what was found, and fails if any of it is unintended.
func report(out io.Writer, ran int, found []finding, release string, verbose bool) error {
	var meant, not []*group
	for _, g := range grouped(found, release) {
		if g.because != "" {
			meant = append(meant, g)
		} else {
			not = append(not, g)
		}
	}
	fmt.Fprintf(out, "\n%d scenarios, %d intended differences\n", ran, len(meant))
	slices.SortStableFunc(meant, func(a, b *group) int { return cmp.Compare(a.because, b.because) })
	said, shown := "", 0
	for _, g := range meant {
		if g.because != said {
			said, shown = g.because, 0
			fmt.Fprintf(out, "\n  %s\n", said)
		}
		switch shown++; {
		case verbose || shown <= examples:
			fmt.Fprintf(out, "    %s\n", g.line())
		case shown == examples+1:
			fmt.Fprintln(out, "    … (-v shows all)")
		}
	}
	if len(not) == 0 {
		fmt.Fprintln(out, "\nno unintended difference")
		return nil
	}
	fmt.Fprintf(out, "\n%d UNINTENDED differences\n", len(not))
	for _, g := range not {
		fmt.Fprintf(out, "  %s\n", g.line())
		if g.example != "" {
			fmt.Fprintf(out, "      %s\n", strings.ReplaceAll(g.example, "\n", "\n      "))
		}
	}
	return errUnintended
}

func grouped(found []finding, release string) []*group {
	var all []*group
	type key struct {
		difference
		because string
	}
	at := map[key]*group{}
	for _, f := range found {
		k := key{f.key(), intended(f, release)}
		g := at[k]
		if g == nil {
			g = &group{finding: f, because: k.because}
			at[k] = g
			all = append(all, g)
		}
		g.times++
		if !slices.Contains(g.scenarios, f.scenario) {
			g.scenarios = append(g.scenarios, f.scenario)
		}
	}
	return all
}

func (g *group) line() string {
	const most = 3
	where := strings.Join(g.scenarios[:min(most, len(g.scenarios))], "; ")
	if more := len(g.scenarios) - most; more > 0 {
		where += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("%s %s: theirs %s, ours %s (%d×: %s)", g.kind, g.name, short(g.theirs), short(g.ours), g.times, where)
}

func short(s string) string {
	const most = 100
	if s == "" {
		return `""`
	}
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Table writes a report for a terminal, about a hundred columns wide: what a
// reader decides by. The rest is in the JSON and on the page.
func (r *Report) Table(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.facts() {
		fmt.Fprintf(&b, "%-9s %s\n", f.Name, f.Text)
	}
	b.WriteString("\n")
	r.cellSheet().write(&b)
	if len(r.Peers) > 0 {
		if r.sums() {
			for i := range r.Parts {
				r.Parts[i].write(&b)
			}
		}
		r.nearest(&b)
	}
	r.objectives(&b)
	b.WriteString("\n" + r.legend())
	_, err := io.WriteString(w, b.String())
	return err
}

// column is one of a table of cells.
type column struct {
	title string
	text  func(*Cell) string
}

// cellSheet has a row for each cell, under a line with its trace and model
// where there are several.
func (r *Report) cellSheet() *sheet {
	columns := r.columns()
	s := &sheet{left: 1}
	if len(startups(r.Cases)) > 1 {
		startup := column{"start", func(c *Cell) string { return fmt.Sprintf("%gs", c.Startup) }}
		columns = slices.Insert(columns, 0, startup)
		s.left = 2
	}
	for i := range columns {
		s.titles = append(s.titles, columns[i].title)
	}
	load := func(c *Cell) string { return cut(c.Trace, 60) + ", " + c.Model }
	several := len(each(r.Cells, load)) > 1
	for i := range r.Cells {
		c := &r.Cells[i]
		if several && (i == 0 || load(c) != load(&r.Cells[i-1])) {
			s.add(load(c))
		}
		var row []string
		for k := range columns {
			row = append(row, columns[k].text(c))
		}
		s.add(row...)
	}
	return s
}

// columns are those that have something to say: no front without peers, no
// cost without a price.
func (r *Report) columns() []column {
	number := func(format string, f func(*Cell) any) func(*Cell) string {
		return func(c *Cell) string { return fmt.Sprintf(format, f(c)) }
	}
	out := []column{
		{"policy", func(c *Cell) string { return cut(c.Ours, policyWidth) }},
		{"missed", number("%.2f%%", func(c *Cell) any { return c.Violations })},
	}
	if len(r.Peers) > 0 {
		out = append(out,
			column{"front", r.against("%.2f%%", func(c *Cell) float64 { return c.Front })},
			column{"ratio", r.against("%.2f", func(c *Cell) float64 { return c.Ratio })})
	}
	out = append(out, column{"GPU-hours", number("%.1f", func(c *Cell) any { return c.GPUHours })})
	if r.priced() {
		out = append(out, column{"cost", r.cost})
	}
	return append(out,
		column{"turns/h", r.turns},
		column{"killed", number("%d", func(c *Cell) any { return c.Killed })},
		column{"cascades", number("%d", func(c *Cell) any { return c.Cascades })})
}

// policyWidth is as much of a policy's name as a table has room for.
const policyWidth = 19

// against formats what is only there with peers of the cell's class.
func (r *Report) against(format string, f func(*Cell) float64) func(*Cell) string {
	return func(c *Cell) string {
		if !r.compared(c.Class) {
			return "-"
		}
		return fmt.Sprintf(format, f(c))
	}
}

func (r *Report) turns(c *Cell) string {
	if !r.compared(c.Class) {
		return fmt.Sprintf("%.1f", c.Turns)
	}
	return fmt.Sprintf("%.1f (%.1f)", c.Turns, c.FrontTurns)
}

// sums says whether summaries have more to say than the cells.
func (r *Report) sums() bool {
	return slices.ContainsFunc(r.Parts, func(p Part) bool {
		return slices.ContainsFunc(p.Summaries, func(s Summary) bool { return s.Cells > 1 })
	})
}

func (p *Part) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n%s\n", p.Name)
	t := &sheet{left: 1, titles: strings.Fields("policy cells mean p95 worst missed front regret turns/h killed cascades")}
	for _, s := range p.Summaries {
		row := []string{cut(s.Ours, policyWidth)}
		row = append(row, strings.Split(fmt.Sprintf("%d|%.2f|%.2f|%.2f|%.2f%%|%.2f%%|%+.0f%%|%.1f (%.1f)|%d|%d", s.Cells, s.Geometric, s.P95, s.Worst,
			s.Violations, s.Front, 100*s.Regret, s.Turns, s.FrontTurns, s.Killed, s.Cascades), "|")...)
		t.add(row...)
	}
	t.write(b)
	for _, s := range p.Summaries {
		fmt.Fprintf(b, "%s worst on %s\n", cut(s.Ours, policyWidth), s.WorstCell)
	}
}

// nearest names the peers' setting that each policy was compared with most.
func (r *Report) nearest(b *strings.Builder) {
	b.WriteString("\nnearest setting on the front, by GPU-hours\n")
	for _, name := range each(r.Cells, func(c *Cell) string { return c.Ours }) {
		cells := slices.DeleteFunc(slices.Clone(r.Cells), func(c Cell) bool { return c.Ours != name })
		nearest, n := commonest(cells, func(c *Cell) string { return c.Nearest })
		if nearest == "" { // no peer of its class
			continue
		}
		fmt.Fprintf(b, "%s: %s", cut(name, policyWidth), nearest)
		if len(cells) > 1 {
			fmt.Fprintf(b, " (most often, %d of %d)", n, len(cells))
		}
		b.WriteString("\n")
	}
}

// legend says what the columns are.
func (r *Report) legend() string {
	common := "killed: pods deleted while starting; cascades: increases past 1.5 × the need\n"
	if len(r.Objectives) > 0 {
		common += objectivesLegend
	}
	if len(r.Peers) == 0 {
		return "missed: requests over a limit or given up; turns/h: changes of direction an hour\n" + common
	}
	out := "missed: requests over a limit or given up; front: the best peers' for the same GPU-hours\n" +
		"ratio: ours ÷ front, below 1 is better; turns/h: changes of direction an hour (the front's)\n" + common
	if r.sums() {
		out += "mean (geometric), p95, worst: of the ratios; regret: GPU-hours over an oracle's, below 0 if fewer\n"
	}
	return out
}

// sheet is a table of text. A row of one cell is a line above those that follow.
type sheet struct {
	titles []string
	left   int // first columns that are words, at the left; the others are numbers
	last   int // last columns that are words
	rows   [][]string
}

func (s *sheet) add(row ...string) { s.rows = append(s.rows, row) }

func (s *sheet) write(b *strings.Builder) {
	rows := append([][]string{s.titles}, s.rows...)
	width := make([]int, len(s.titles))
	for _, row := range rows {
		for i := 0; len(row) > 1 && i < len(row); i++ {
			width[i] = max(width[i], utf8.RuneCountInString(row[i]))
		}
	}
	for _, row := range rows {
		if len(row) == 1 {
			b.WriteString(row[0] + "\n")
			continue
		}
		var line strings.Builder
		for i, text := range row {
			if i < s.left || i >= len(row)-s.last {
				fmt.Fprintf(&line, "%-*s  ", width[i], text)
			} else {
				fmt.Fprintf(&line, "%*s  ", width[i], text)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

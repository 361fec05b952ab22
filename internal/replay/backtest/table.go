// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Table writes the most important results for a terminal, about a hundred columns wide. The
// JSON and the page have the rest.
func (r *Report) Table(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.facts() {
		fmt.Fprintf(&b, "%-9s %s\n", f.Name, f.Text)
	}
	b.WriteString("\n")
	r.cellTable().write(&b)
	if len(r.Peers) > 0 {
		if r.hasSummaries() {
			for i := range r.Groups {
				r.Groups[i].write(&b)
			}
		}
		r.writeNearest(&b)
	}
	r.writeObjectives(&b)
	b.WriteString("\n" + r.legend())
	_, err := io.WriteString(w, b.String())
	return err
}

// column is a column of the table of cells.
type column struct {
	title string
	text  func(*Cell) string
}

// cellTable has one row per cell. With several traces or models, each has a line above its
// rows.
func (r *Report) cellTable() *textTable {
	columns := r.columns()
	t := &textTable{textColumns: 1}
	if len(startupTexts(r.Cases)) > 1 {
		startup := column{"start", func(c *Cell) string { return fmt.Sprintf("%gs", c.Startup) }}
		columns = slices.Insert(columns, 0, startup)
		t.textColumns = 2
	}
	for i := range columns {
		t.titles = append(t.titles, columns[i].title)
	}
	load := func(c *Cell) string { return shorten(c.Trace, 60) + ", " + c.Model }
	several := len(distinct(r.Cells, load)) > 1
	for i := range r.Cells {
		c := &r.Cells[i]
		if several && (i == 0 || load(c) != load(&r.Cells[i-1])) {
			t.add(load(c))
		}
		var row []string
		for k := range columns {
			row = append(row, columns[k].text(c))
		}
		t.add(row...)
	}
	return t
}

// columns returns the columns that have values: the front only with peers, the cost only
// with a price.
func (r *Report) columns() []column {
	number := func(format string, f func(*Cell) any) func(*Cell) string {
		return func(c *Cell) string { return fmt.Sprintf(format, f(c)) }
	}
	out := []column{
		{"policy", func(c *Cell) string { return shorten(c.Ours, policyWidth) }},
		{"missed", number("%.2f%%", func(c *Cell) any { return c.Violations })},
	}
	if len(r.Peers) > 0 {
		out = append(out,
			column{"front", r.ifPeers("%.2f%%", func(c *Cell) float64 { return c.Front })},
			column{"ratio", r.ifPeers("%.2f", func(c *Cell) float64 { return c.Ratio })})
	}
	out = append(out, column{"GPU-hours", number("%.1f", func(c *Cell) any { return c.GPUHours })})
	if r.hasPrices() {
		out = append(out, column{"cost", r.cost})
	}
	return append(out,
		column{"turns/h", r.turns},
		column{"killed", number("%d", func(c *Cell) any { return c.Killed })},
		column{"cascades", number("%d", func(c *Cell) any { return c.Cascades })})
}

// policyWidth is the width of a policy's name in tables.
const policyWidth = 19

// ifPeers formats a value of cells that have peers of their class, and - for others.
func (r *Report) ifPeers(format string, f func(*Cell) float64) func(*Cell) string {
	return func(c *Cell) string {
		if !r.hasPeers(c.Class) {
			return "-"
		}
		return fmt.Sprintf(format, f(c))
	}
}

func (r *Report) turns(c *Cell) string {
	if !r.hasPeers(c.Class) {
		return fmt.Sprintf("%.1f", c.Turns)
	}
	return fmt.Sprintf("%.1f (%.1f)", c.Turns, c.FrontTurns)
}

// hasSummaries reports whether any summary has more than one cell.
func (r *Report) hasSummaries() bool {
	return slices.ContainsFunc(r.Groups, func(g Group) bool {
		return slices.ContainsFunc(g.Summaries, func(s Summary) bool { return s.Cells > 1 })
	})
}

func (g *Group) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n%s\n", g.Name)
	t := &textTable{textColumns: 1, titles: strings.Fields("policy cells mean p95 worst missed front regret turns/h killed cascades")}
	for _, s := range g.Summaries {
		row := []string{shorten(s.Ours, policyWidth)}
		row = append(row, strings.Split(fmt.Sprintf("%d|%.2f|%.2f|%.2f|%.2f%%|%.2f%%|%+.0f%%|%.1f (%.1f)|%d|%d", s.Cells, s.Geometric, s.P95, s.Worst,
			s.Violations, s.Front, 100*s.Regret, s.Turns, s.FrontTurns, s.Killed, s.Cascades), "|")...)
		t.add(row...)
	}
	t.write(b)
	for _, s := range g.Summaries {
		fmt.Fprintf(b, "%s worst on %s\n", shorten(s.Ours, policyWidth), s.WorstCell)
	}
}

// writeNearest writes, for each policy, the peers' setting that it was compared with most
// often.
func (r *Report) writeNearest(b *strings.Builder) {
	b.WriteString("\nnearest setting on the front, by GPU-hours\n")
	for _, name := range distinct(r.Cells, func(c *Cell) string { return c.Ours }) {
		cells := slices.DeleteFunc(slices.Clone(r.Cells), func(c Cell) bool { return c.Ours != name })
		nearest, n := mostFrequent(cells, func(c *Cell) string { return c.Nearest })
		if nearest == "" { // its class has no peers
			continue
		}
		fmt.Fprintf(b, "%s: %s", shorten(name, policyWidth), nearest)
		if len(cells) > 1 {
			fmt.Fprintf(b, " (most often, %d of %d)", n, len(cells))
		}
		b.WriteString("\n")
	}
}

// legend explains the columns.
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
	if r.hasSummaries() {
		out += "mean (geometric), p95, worst: of the ratios; regret: GPU-hours over an oracle's, below 0 if fewer\n"
	}
	return out
}

// textTable is a table of text. A row with one cell is a line above the rows that follow.
type textTable struct {
	titles           []string
	textColumns      int // first columns, aligned left; numbers are aligned right
	textColumnsAtEnd int
	rows             [][]string
}

func (t *textTable) add(row ...string) { t.rows = append(t.rows, row) }

func (t *textTable) write(b *strings.Builder) {
	rows := append([][]string{t.titles}, t.rows...)
	width := make([]int, len(t.titles))
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
			if i < t.textColumns || i >= len(row)-t.textColumnsAtEnd {
				fmt.Fprintf(&line, "%-*s  ", width[i], text)
			} else {
				fmt.Fprintf(&line, "%*s  ", width[i], text)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"fmt"
	"io"
	"slices"
	"strconv"
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
	r.writePromises(&b)
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
	out := []column{
		{"policy", func(c *Cell) string { return shorten(c.Ours, policyWidth) }},
		{"missed", func(c *Cell) string { return fmt.Sprintf("%.2f%%", c.Violations) }},
	}
	if len(r.Peers) > 0 {
		out = append(out,
			column{"front", func(c *Cell) string { return number("%.2f%%", c.Front) }},
			column{"ratio", ratioText})
	}
	out = append(out, column{"GPU-hours", func(c *Cell) string { return fmt.Sprintf("%.1f", c.GPUHours) }})
	if r.hasPrices() {
		out = append(out, column{"cost", r.cost})
	}
	return append(out,
		column{"turns/h", r.turns},
		column{"killed", func(c *Cell) string { return strconv.Itoa(c.Killed) }},
		column{"cascades", func(c *Cell) string { return strconv.Itoa(c.Cascades) }})
}

// policyWidth is the width of a policy's name in tables.
const policyWidth = 19

// number formats a value, and - for one that is missing.
func number(format string, v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, *v)
}

// ratioText formats a cell's ratio, or says in a word why it has none.
func ratioText(c *Cell) string {
	switch c.Outside {
	case Cheaper:
		return "cheaper"
	case KeepsMore:
		return "safer"
	}
	return number("%.2f", c.Ratio)
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
		row = append(row, strings.Split(fmt.Sprintf("%d|%s|%s|%s|%.2f%%|%s|%+.0f%%|%.1f (%.1f)|%d|%d", s.Cells, number("%.2f", s.Geometric),
			number("%.2f", s.P95), number("%.2f", s.Worst), s.Violations, number("%.2f%%", s.Front), 100*s.Regret, s.Turns, s.FrontTurns, s.Killed, s.Cascades), "|")...)
		t.add(row...)
	}
	t.write(b)
	for _, s := range g.Summaries {
		if s.Compared > 0 {
			fmt.Fprintf(b, "%s worst on %s\n", shorten(s.Ours, policyWidth), s.WorstCell)
		}
		if note := s.OutsideNote(); note != "" {
			fmt.Fprintf(b, "%s %s\n", shorten(s.Ours, policyWidth), note)
		}
	}
}

// OutsideNote says which cells have no ratio; "" if all have one.
func (s *Summary) OutsideNote() string {
	var parts []string
	if s.Cheaper > 0 {
		parts = append(parts, fmt.Sprintf("%s in %d", Cheaper, s.Cheaper))
	}
	if n := s.Cells - s.Compared - s.Cheaper; n > 0 {
		parts = append(parts, fmt.Sprintf("%s in %d", KeepsMore, n))
	}
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("%s of %s: no ratio there", enumerate(parts), count(s.Cells, "cell", "cells"))
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
		"ratio: ours ÷ front, below 1 is better; turns/h: changes of direction an hour (the front's)\n"
	if slices.ContainsFunc(r.Cells, func(c Cell) bool { return c.Outside != "" }) {
		out += "cheaper: than every peer setting; safer: keeps more than any peer setting; no ratio there\n"
	}
	out += common
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

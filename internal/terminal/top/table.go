// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupilot/gpupilot/internal/terminal/termtext"
)

// Table is the rows of a view, before they are laid out for a terminal or a file.
type Table struct {
	Columns []Column
	Rows    []Row
	// Total is the number of rows that exist; more than Rows if only a part was read.
	Total int
	// Sort is the key of the column by which the view is sorted at first; with a minus
	// from the highest.
	Sort string
	// Legend explains a column, below the rows of a live view.
	Legend string

	sorted int // the column by which it was sorted, and one more; 0: none
}

// Column is a column of a table.
type Column struct {
	Key   string // for --sort and for CSV, with the unit
	Head  string
	Wide  bool // only where there is room, and with -o wide
	Right bool // numbers
	Least int  // cells that it needs; 0: those of its longest text
	Rank  int  // columns of the highest rank are left out first where there is no room; 0: never
	Names bool // a long text is cut in the middle
	Rest  bool // takes the rest of the line
}

// Row is one row of a table.
type Row struct {
	ID     string            // the same in each read
	Labels map[string]string // for the filter -l
	Cells  []Cell            // one for each column
}

// Cell is a value of a row.
type Cell struct {
	Text  string // clean; empty: unknown
	Value any    // string, float64 or nil: unknown; for sorting and CSV
	Style Style
}

// Style is the meaning of a text, which a theme draws.
type Style int

// The styles.
const (
	Plain  Style = iota
	Faint        // stale, free, or less important
	Good         // works
	Warn         // look at it
	Bad          // a problem
	Strong       // a heading
)

// unknown is the text of a missing value. Missing is not zero.
const unknown = "–"

// text is a cell of a text from outside.
func text(s string, style ...Style) Cell {
	c := Cell{Text: termtext.Clean(s), Value: termtext.Clean(s)}
	if s == "" {
		c.Value = nil
	}
	if len(style) > 0 {
		c.Style = style[0]
	}
	return c
}

// number is a cell of a number; nil: unknown.
func number(v *float64, format string) Cell {
	if v == nil {
		return Cell{}
	}
	return Cell{Text: fmt.Sprintf(format, *v), Value: *v}
}

func count(n int) Cell { return Cell{Text: fmt.Sprint(n), Value: float64(n)} }

// styled returns c with a style.
func (c Cell) styled(s Style) Cell {
	c.Style = s
	return c
}

// column returns the index of a column by its key or its head; -1: there is none.
func (t *Table) column(name string) int {
	return slices.IndexFunc(t.Columns, func(c Column) bool {
		return strings.EqualFold(c.Key, name) || strings.EqualFold(c.Head, name)
	})
}

// SortBy sorts the rows by a column. A minus before its name is for the highest first.
// Unknown values are last. Rows with equal values keep their order.
func (t *Table) SortBy(name string) error {
	column, descending := strings.CutPrefix(name, "-")
	at := t.column(column)
	if at < 0 {
		keys := make([]string, len(t.Columns))
		for i := range t.Columns {
			keys[i] = t.Columns[i].Key
		}
		return fmt.Errorf("there is no column %.40q: want %s, with a minus for the highest first", column, strings.Join(keys, ", "))
	}
	t.sorted = at + 1
	slices.SortStableFunc(t.Rows, func(a, b Row) int {
		x, y := a.Cells[at].Value, b.Cells[at].Value
		if x == nil || y == nil {
			return cmp.Compare(boolInt(x == nil), boolInt(y == nil))
		}
		if descending {
			x, y = y, x
		}
		return compareValues(x, y)
	})
	return nil
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// compareValues compares numbers as numbers, and texts as texts.
func compareValues(a, b any) int {
	x, xok := a.(float64)
	y, yok := b.(float64)
	if xok && yok {
		return cmp.Compare(x, y)
	}
	return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
}

// keep keeps the rows that the filter matches.
func (t *Table) keep(f *Filter) {
	if f == nil || f.Empty() {
		return
	}
	t.Rows = slices.DeleteFunc(slices.Clone(t.Rows), func(r Row) bool { return !f.Match(&r) })
}

// gap is the space between two columns of a terminal's line.
const gap = 2

// layout returns the width of each column in a line of that width; 0: the column is left
// out.
func (t *Table) layout(width int, wide bool) []int {
	widths, least := make([]int, len(t.Columns)), make([]int, len(t.Columns))
	for i, c := range t.Columns {
		if c.Wide && !wide {
			continue
		}
		head := len([]rune(c.Head))
		if t.sorted == i+1 {
			head++ // the arrow
		}
		w := max(head, c.Least)
		for j := range t.Rows {
			w = max(w, termtext.Width(t.Rows[j].Cells[i].Text))
		}
		widths[i], least[i] = w, w
		if c.Names || c.Rest {
			least[i] = min(w, max(head, c.Least, 8))
		}
	}
	for lineWidth(least) > width {
		drop := -1
		for i, c := range t.Columns {
			if least[i] > 0 && c.rank() > 0 && (drop < 0 || c.rank() >= t.Columns[drop].rank()) {
				drop = i
			}
		}
		if drop < 0 {
			break
		}
		widths[drop], least[drop] = 0, 0
	}
	// On a very narrow screen, the columns on the right go.
	for i := len(widths) - 1; i > 0 && lineWidth(least) > width; i-- {
		widths[i], least[i] = 0, 0
	}
	// What is too long shrinks, the widest first.
	for lineWidth(widths) > width {
		widest := -1
		for i, c := range t.Columns {
			if (c.Names || c.Rest) && widths[i] > least[i] && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	return widths
}

// rank is the order in which columns are left out.
func (c *Column) rank() int {
	if c.Wide {
		return 100 + c.Rank
	}
	return c.Rank
}

// lineWidth is the width of a line with the gaps between its columns.
func lineWidth(widths []int) int {
	total := 0
	for _, w := range widths {
		if w > 0 {
			total += w + gap
		}
	}
	return max(0, total-gap)
}

// cellText returns the text of a cell in its column's width.
func (c *Column) cellText(s string, width int) string {
	if s == "" {
		s = unknown
	}
	if c.Names && termtext.Width(s) > width {
		s = termtext.TruncateMiddle(s, width)
	}
	return termtext.Fit(s, width, c.Right)
}

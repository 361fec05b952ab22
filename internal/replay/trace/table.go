// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
)

// maxRows is the highest number of rows: more than a year of seconds.
const maxRows = 40_000_000

// Table reads a CSV file with a header line, one row at a time. Cells are read by the name of their column. Errors name
// the file, the line, the column and the value.
type Table struct {
	name   string
	in     *csv.Reader
	column map[string]int
	record []string
	rows   int
}

// NewTable reads the header. The name is used in errors.
func NewTable(name string, in io.Reader) (*Table, error) {
	r := &Table{name: name, in: csv.NewReader(in)}
	r.in.ReuseRecord = true
	header, err := r.in.Read()
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: the file is empty", name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: header: %w", name, err)
	}
	r.column = make(map[string]int, len(header))
	for i, h := range header {
		if i == 0 {
			h = strings.TrimPrefix(h, "\ufeff") // the byte order mark that spreadsheets write
		}
		r.column[strings.TrimSpace(h)] = i
	}
	return r, nil
}

// Has reports whether the table has all of these columns.
func (r *Table) Has(columns ...string) bool {
	return !slices.ContainsFunc(columns, func(c string) bool { _, ok := r.column[c]; return !ok })
}

// Columns returns the names of the columns for an error, sorted and shortened.
func (r *Table) Columns() string {
	names := make([]string, 0, len(r.column))
	for c := range r.column {
		names = append(names, c)
	}
	slices.Sort(names)
	return Excerpt(strings.Join(names, ","))
}

// Next reads the next row. It returns false after the last row.
func (r *Table) Next() (bool, error) {
	record, err := r.in.Read()
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", r.name, err)
	}
	if r.rows++; r.rows > maxRows {
		return false, fmt.Errorf("%s: more than %d rows", r.name, maxRows)
	}
	r.record = record
	return true, nil
}

// Text returns a cell of the current row without surrounding spaces; "" if the table does
// not have the column.
func (r *Table) Text(column string) string {
	if i, ok := r.column[column]; ok {
		return strings.Clone(strings.TrimSpace(r.record[i]))
	}
	return ""
}

// Number returns a cell from 0 to most. If the column is absent or the cell is empty, it
// returns the default.
func (r *Table) Number(column string, most, byDefault float64) (float64, error) {
	i, ok := r.column[column]
	if !ok {
		return byDefault, nil
	}
	cell := strings.TrimSpace(r.record[i])
	if cell == "" {
		return byDefault, nil
	}
	x, err := strconv.ParseFloat(cell, 64)
	if err != nil || !(x >= 0 && x <= most) {
		return 0, r.Errorf(column, "%q is not a number from 0 to %g", Excerpt(cell), most)
	}
	return x, nil
}

// Required returns a cell from 0 to most, which must not be empty.
func (r *Table) Required(column string, most float64) (float64, error) {
	x, err := r.Number(column, most, math.NaN())
	if err == nil && math.IsNaN(x) {
		err = r.Errorf(column, "is empty")
	}
	return x, err
}

// Errorf returns an error about a cell of the current row: NAME:LINE:COLUMN: column "…": ….
// The table must have the column.
func (r *Table) Errorf(column, format string, args ...any) error {
	line, col := r.in.FieldPos(r.column[column])
	return fmt.Errorf("%s:%d:%d: column %q: %s", r.name, line, col, column, fmt.Sprintf(format, args...))
}

// Excerpt shortens a value to 80 bytes for an error.
func Excerpt(s string) string { return excerpt.Of(s, 80) }

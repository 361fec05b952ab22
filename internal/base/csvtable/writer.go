// SPDX-License-Identifier: Apache-2.0

// Package csvtable writes CSV for people, whose spreadsheets evaluate no cell of it.
package csvtable

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Writer writes rows for people, who open them in a spreadsheet. Call Flush after the last one.
type Writer struct{ out *csv.Writer }

// NewWriter returns a Writer.
func NewWriter(out io.Writer) *Writer { return &Writer{csv.NewWriter(out)} }

// Number is a number as it is written.
type Number string

// Write writes a row. A float64, an int and a Number are numbers, and nil is empty. Everything else is a text, which no spreadsheet takes for a
// formula: names come from tenants.
func (w *Writer) Write(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		switch v := c.(type) {
		case nil:
		case float64:
			row[i] = strconv.FormatFloat(v, 'g', -1, 64)
		case Number:
			row[i] = string(v)
		case int:
			row[i] = strconv.Itoa(v)
		default:
			row[i] = text(fmt.Sprint(v))
		}
	}
	_ = w.out.Write(row) // Flush returns its error
}

// Flush writes what is buffered, and returns the first error.
func (w *Writer) Flush() error {
	w.out.Flush()
	return w.out.Error()
}

// formulaStarts begin a formula in a spreadsheet, the last four in a Japanese one.
const formulaStarts = "=+-@\t\r＝＋－＠"

func text(s string) string {
	if strings.IndexAny(s, formulaStarts) == 0 {
		return "'" + s
	}
	return s
}

// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"fmt"
	"io"
	"os"
)

// Count is the number of requests between one row of a recording and the next.
type Count struct {
	At float64 // seconds since any moment
	N  float64
}

// OpenCounts reads counts from a CSV file; see [ReadCounts].
func OpenCounts(path, column string) ([]Count, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	defer func() { _ = f.Close() }() // only read from
	return ReadCounts(path, f, column)
}

// ReadCounts reads the column t_s, which must increase, and a column of counts; "" means
// requests. The CSV is plain or gzip, and may have other columns. There are at least two
// rows. Errors name file, line and column.
func ReadCounts(name string, r io.Reader, column string) (counts []Count, err error) {
	err = readCSV(name, r, func(in *Table) error {
		counts, err = readCounts(name, in, cmp.Or(column, "requests"))
		return err
	})
	return counts, err
}

func readCounts(name string, in *Table, column string) (out []Count, err error) {
	const most = 1e12
	for _, c := range []string{"t_s", column} {
		if !in.Has(c) {
			return nil, fmt.Errorf("%s:1: no column %q among %q", name, c, in.Columns())
		}
	}
	for {
		ok, err := in.Next()
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		var c Count
		if c.At, err = in.Required("t_s", most); err != nil {
			return nil, err
		}
		if c.N, err = in.Required(column, most); err != nil {
			return nil, err
		}
		if k := len(out); k > 0 && c.At <= out[k-1].At {
			return nil, in.Errorf("t_s", "%v is not greater than the previous %v", c.At, out[k-1].At)
		}
		out = append(out, c)
	}
	if len(out) < 2 {
		return nil, fmt.Errorf("%s: %d rows of counts: want at least 2", name, len(out))
	}
	return out, nil
}

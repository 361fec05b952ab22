// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bufio"
	"fmt"
	"io"
	"slices"
)

// readCSV calls read with the rows of a CSV file, plain or gzip.
func readCSV(name string, r io.Reader, read func(*Table) error) error {
	plain := bufio.NewReader(r)
	if !isGzip(plain) {
		return readText(name, plain, read)
	}
	z, err := newGzipFile(plain)
	if err != nil {
		return fmt.Errorf("%s: %w", name, z.explain(err))
	}
	if err = readText(name, bufio.NewReader(z), read); err == nil {
		return nil
	}
	if cause := z.explain(err); cause != err { //nolint:errorlint // explain returns err itself if the file is whole
		return fmt.Errorf("%s: %w", name, cause)
	}
	return err
}

func readText(name string, plain *bufio.Reader, read func(*Table) error) error {
	// Peek's error is left to the next read, which returns it again.
	if head, _ := plain.Peek(headLength); slices.ContainsFunc(head, isBinary) {
		return fmt.Errorf("%s: the file is binary: want a CSV in UTF-8, plain or gzip", name)
	}
	in, err := NewTable(name, plain)
	if err != nil {
		return err
	}
	return read(in)
}

// headLength is the number of bytes that are checked for binary data.
const headLength = 512

// isBinary reports whether a byte never occurs in text. Archives, Parquet and UTF-16 have
// many such bytes.
func isBinary(c byte) bool { return c < ' ' && c != '\t' && c != '\n' && c != '\r' }

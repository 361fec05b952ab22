// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
)

// gzipFile reads a gzip file and explains what is wrong with it.
type gzipFile struct {
	in      *tailReader
	out     *gzip.Reader
	decoded int64 // bytes
}

// isGzip says whether a file begins as gzip files do.
func isGzip(r *bufio.Reader) bool {
	magic, err := r.Peek(2)
	return err == nil && magic[0] == 0x1f && magic[1] == 0x8b
}

func newGzipFile(r io.Reader) (g *gzipFile, err error) {
	g = &gzipFile{in: &tailReader{r: r}}
	g.out, err = gzip.NewReader(bufio.NewReader(g.in))
	return g, err
}

// Read is io.Reader's.
func (g *gzipFile) Read(b []byte) (int, error) {
	n, err := g.out.Read(b)
	g.decoded += int64(n)
	return n, err
}

// What is wrong with a gzip file.
var (
	errCorrupt = errors.New("the gzip file is corrupt: copy or compress it again")
	errCut     = errors.New("the gzip file is cut short: copy or compress it again")
)

// explain says what is wrong with a file that could not be read on. A row that
// makes no sense is the damage's where the rest does not decompress either.
func (g *gzipFile) explain(err error) error {
	var corrupt flate.CorruptInputError
	switch {
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader), errors.As(err, &corrupt):
		return errCorrupt
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		if g.complete() {
			return errCorrupt
		}
		return errCut
	}
	if _, bad := io.CopyN(io.Discard, g, drainBytes); bad != nil && !errors.Is(bad, io.EOF) {
		return errCorrupt
	}
	return err
}

const (
	// drainBytes bounds what is decompressed to tell a bad row from a bad file.
	drainBytes = 1 << 30
	// textRatio is more than text of numbers is compressed by.
	textRatio = 20
)

// complete says whether the input ends as gzip files do, with the length of what
// was compressed (RFC 1952, ISIZE). The last bytes of a part of a file are any
// number, which is hardly ever a likely length.
func (g *gzipFile) complete() bool {
	length := int64(binary.LittleEndian.Uint32(g.in.tail[:]))
	return g.in.n > 18 && length > 0 && length >= g.decoded/2 && length <= textRatio*g.in.n
}

// tailReader remembers how much was read, and the last four bytes.
type tailReader struct {
	r    io.Reader
	n    int64
	tail [4]byte
}

// Read is io.Reader's.
func (t *tailReader) Read(b []byte) (int, error) {
	n, err := t.r.Read(b)
	t.n += int64(n)
	last := append(t.tail[:], b[max(0, n-4):n]...)
	copy(t.tail[:], last[len(last)-4:])
	return n, err
}

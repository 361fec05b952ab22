// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
)

// gzipFile decompresses a gzip file and explains why one cannot be read.
type gzipFile struct {
	in      *tailReader
	out     *gzip.Reader
	decoded int64 // bytes
}

// isGzip reports whether a file starts with the magic number of gzip.
func isGzip(r *bufio.Reader) bool {
	magic, err := r.Peek(2)
	return err == nil && magic[0] == 0x1f && magic[1] == 0x8b
}

func newGzipFile(r io.Reader) (g *gzipFile, err error) {
	g = &gzipFile{in: &tailReader{r: r}}
	g.out, err = gzip.NewReader(bufio.NewReader(g.in))
	return g, err
}

// Read implements io.Reader.
func (g *gzipFile) Read(b []byte) (int, error) {
	n, err := g.out.Read(b)
	g.decoded += int64(n)
	return n, err
}

// The faults of a gzip file.
var (
	errCorrupt   = errors.New("the gzip file is corrupt: copy or compress it again")
	errTruncated = errors.New("the gzip file is truncated: copy or compress it again")
)

// explain returns the cause of a read error: errCorrupt, errTruncated or err itself. A
// damaged file can also decompress to an invalid row. So after an error of a row, explain
// decompresses the rest and checks it.
func (g *gzipFile) explain(err error) error {
	var corrupt flate.CorruptInputError
	switch {
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader), errors.As(err, &corrupt):
		return errCorrupt
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		if g.complete() {
			return errCorrupt
		}
		return errTruncated
	}
	if _, bad := io.CopyN(io.Discard, g, drainBytes); bad != nil && !errors.Is(bad, io.EOF) {
		return errCorrupt
	}
	return err
}

const (
	// drainBytes is the most that explain decompresses.
	drainBytes = 1 << 30
	// textRatio is above the compression ratio of a CSV of numbers.
	textRatio = 20
)

// complete reports whether the input ends with a plausible length of the uncompressed data
// (RFC 1952, ISIZE), as a whole gzip file does. The last bytes of a truncated file are
// arbitrary, and are seldom a plausible length.
func (g *gzipFile) complete() bool {
	length := int64(binary.LittleEndian.Uint32(g.in.tail[:]))
	return g.in.n > 18 && length > 0 && length >= g.decoded/2 && length <= textRatio*g.in.n
}

// tailReader counts the bytes that it reads, and keeps the last four.
type tailReader struct {
	r    io.Reader
	n    int64
	tail [4]byte
}

// Read implements io.Reader.
func (t *tailReader) Read(b []byte) (int, error) {
	n, err := t.r.Read(b)
	t.n += int64(n)
	last := append(t.tail[:], b[max(0, n-4):n]...)
	copy(t.tail[:], last[len(last)-4:])
	return n, err
}

// SPDX-License-Identifier: Apache-2.0

package termtext

import (
	"io"
	"unicode/utf8"
)

// Writer writes what a command prints: texts of tenants among it do not reach the terminal as controls. Line feeds and tabs
// pass; other control and format characters become U+FFFD.
type Writer struct {
	out  io.Writer
	rest []byte // the start of a character whose end comes with the next Write
}

// NewWriter returns a Writer.
func NewWriter(out io.Writer) *Writer { return &Writer{out: out} }

// Screen is what the Writer writes to, for a command that draws by itself, of texts that it has cleaned.
func (w *Writer) Screen() io.Writer { return w.out }

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	in := append(w.rest, p...)
	out := make([]byte, 0, len(in))
	for len(in) > 0 && utf8.FullRune(in) {
		r, n := utf8.DecodeRune(in)
		switch {
		case r == '\n' || r == '\t':
			out = append(out, byte(r))
		case r < ' ' || IsUnsafe(r):
			out = utf8.AppendRune(out, utf8.RuneError)
		default:
			out = utf8.AppendRune(out, r)
		}
		in = in[n:]
	}
	w.rest = append(w.rest[:0], in...)
	if _, err := w.out.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// SPDX-License-Identifier: Apache-2.0

// Package termtext writes texts from outside to a terminal: nothing in them moves its cursor,
// reverses the direction of a line or is wider than its column.
package termtext

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// maxText bounds a text of a cell, in bytes. Names of objects have at most 253.
const maxText = 4096

// maxMarks is the number of marks that may follow a character: more of them would be drawn
// over other lines.
const maxMarks = 2

// ellipsis marks what was cut off.
const ellipsis = "…"

// Clean returns a text from outside as it may be written to a terminal. Control and format
// characters, which could move the cursor or reverse the direction of the text, and
// characters that cannot be printed become U+FFFD, and all kinds of space a space.
func Clean(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	if isPlain(s) {
		return s
	}
	var b strings.Builder
	marks := 0
	for _, r := range s {
		switch {
		case unicode.Is(unicode.Mn, r) || unicode.Is(unicode.Me, r) || unicode.Is(unicode.Mc, r):
			if marks++; marks > maxMarks || b.Len() == 0 || unicode.Is(unicode.Variation_Selector, r) {
				continue
			}
			b.WriteRune(r)
			continue
		case unicode.IsSpace(r) || unicode.Is(unicode.Zs, r):
			b.WriteByte(' ')
		case r == utf8.RuneError || !unicode.IsPrint(r):
			b.WriteRune(utf8.RuneError)
		default:
			b.WriteRune(r)
		}
		marks = 0
	}
	return b.String()
}

// isPlain reports whether a text has printable ASCII characters only.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// ASCII replaces what is not ASCII in a clean text.
func ASCII(s string) string {
	if isPlain(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r <= '~':
			return r
		case r == '–' || r == '—':
			return '-'
		case r == '→':
			return '>'
		case r == '÷':
			return '/'
		case r == '≥':
			return '>'
		case r == '·':
			return '|'
		case r == '…':
			return '~'
		}
		if at := strings.IndexRune("█▒░↑↓", r); at >= 0 {
			return rune("#=.^v"[at/len("█")]) // each has three bytes
		}
		return '?'
	}, s)
}

// EscapeJSON writes characters that a terminal could obey as escapes, which only occur in
// texts. The values stay the same.
func EscapeJSON(b []byte) []byte {
	if !bytes.ContainsFunc(b, IsUnsafe) {
		return b
	}
	out := make([]byte, 0, len(b)+64)
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if IsUnsafe(r) {
			for _, half := range utf16.AppendRune(nil, r) {
				const digits = "0123456789abcdef"
				out = append(out, '\\', 'u', digits[half>>12&15], digits[half>>8&15], digits[half>>4&15], digits[half&15])
			}
		} else {
			out = append(out, b[:n]...)
		}
		b = b[n:]
	}
	return out
}

// IsUnsafe reports whether a terminal could obey a character that is no ASCII.
func IsUnsafe(r rune) bool {
	return r >= 0x7f && r != utf8.RuneError && !unicode.IsPrint(r) && !unicode.Is(unicode.Zs, r)
}

// Width is the number of a terminal's cells that a text takes.
func Width(s string) int {
	if isPlain(s) {
		return len(s)
	}
	return ansi.StringWidth(s)
}

// Fit returns a text in exactly n cells of a terminal.
func Fit(s string, n int, right bool) string {
	w := Width(s)
	if w > n {
		s = Truncate(s, n)
		w = Width(s)
	}
	pad := strings.Repeat(" ", max(0, n-w))
	if right {
		return pad + s
	}
	return s + pad
}

// Truncate returns a text in at most n cells, with an ellipsis if it is longer.
func Truncate(s string, n int) string {
	switch {
	case Width(s) <= n:
		return s
	case n <= 0:
		return ""
	case isPlain(s):
		return s[:n-1] + ellipsis
	}
	return ansi.Truncate(s, n, ellipsis)
}

// TruncateMiddle keeps both ends of a name, and more of its end, which tells names apart.
func TruncateMiddle(s string, n int) string {
	if Width(s) <= n || n < 8 || !isPlain(s) {
		return Truncate(s, n)
	}
	tail := (n - 1) * 2 / 3
	return s[:n-1-tail] + ellipsis + s[len(s)-tail:]
}

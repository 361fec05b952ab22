// SPDX-License-Identifier: Apache-2.0

package top

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

// asciiOf replaces what is not ASCII in a clean text.
func asciiOf(s string) string {
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
		return '?'
	}, s)
}

// escapeJSON writes characters that a terminal could obey as escapes, which only occur in
// texts. The values stay the same.
func escapeJSON(b []byte) []byte {
	if !bytes.ContainsFunc(b, isUnsafe) {
		return b
	}
	out := make([]byte, 0, len(b)+64)
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if isUnsafe(r) {
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

func isUnsafe(r rune) bool {
	return r >= 0x7f && r != utf8.RuneError && !unicode.IsPrint(r) && !unicode.Is(unicode.Zs, r)
}

// widthOf is the number of a terminal's cells that a text takes.
func widthOf(s string) int {
	if isPlain(s) {
		return len(s)
	}
	return ansi.StringWidth(s)
}

// fit returns a text in exactly n cells of a terminal.
func fit(s string, n int, right bool) string {
	w := widthOf(s)
	if w > n {
		s = truncate(s, n)
		w = widthOf(s)
	}
	pad := strings.Repeat(" ", max(0, n-w))
	if right {
		return pad + s
	}
	return s + pad
}

// truncate returns a text in at most n cells, with an ellipsis if it is longer.
func truncate(s string, n int) string {
	switch {
	case widthOf(s) <= n:
		return s
	case n <= 0:
		return ""
	case isPlain(s):
		return s[:n-1] + ellipsis
	}
	return ansi.Truncate(s, n, ellipsis)
}

// truncateMiddle keeps both ends of a name, and more of its end, which tells names apart.
func truncateMiddle(s string, n int) string {
	if widthOf(s) <= n || n < 8 || !isPlain(s) {
		return truncate(s, n)
	}
	tail := (n - 1) * 2 / 3
	return s[:n-1-tail] + ellipsis + s[len(s)-tail:]
}

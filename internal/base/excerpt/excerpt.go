// SPDX-License-Identifier: Apache-2.0

// Package excerpt shortens texts for messages of limited size: conditions,
// events, errors, log lines and the page. The texts come from outside, so their
// size and bytes are not known.
package excerpt

import (
	"strings"
	"unicode/utf8"
)

// ellipsis marks the cut.
const ellipsis = "…"

// Of returns s in at most maxBytes bytes of valid UTF-8. A longer text is cut
// between characters and ends with an ellipsis; the result is never shorter
// than the ellipsis, which is 3 bytes. Invalid bytes become question marks, one
// for each run of them.
func Of(s string, maxBytes int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= maxBytes {
		return s
	}
	cut := max(maxBytes-len(ellipsis), 0)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + ellipsis
}

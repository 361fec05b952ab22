// SPDX-License-Identifier: Apache-2.0

package termtext

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

// However a text is cut into writes, the terminal gets no control of it, and all of what can be printed.
func FuzzWriter(f *testing.F) {
	f.Add("a\x1b[2J\u202e\x9b31m\n\té日本", 3)
	f.Add("\xff\xe6\x97", 1)
	f.Fuzz(func(t *testing.T, s string, size int) {
		var out bytes.Buffer
		w := NewWriter(&out)
		for rest := s; rest != ""; {
			n := min(len(rest), max(1, size%16))
			if m, err := w.Write([]byte(rest[:n])); m != n || err != nil {
				t.Fatal(m, err)
			}
			rest = rest[n:]
		}
		got := out.String()
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return r != '\n' && r != '\t' && (r < ' ' || IsUnsafe(r)) }) {
			t.Errorf("%q became %q", s, got)
		}
		var want bytes.Buffer
		_, _ = NewWriter(&want).Write([]byte(s))
		if got != want.String() {
			t.Errorf("in parts %q, at once %q", got, want.String())
		}
	})
}

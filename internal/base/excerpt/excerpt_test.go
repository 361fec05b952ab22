// SPDX-License-Identifier: Apache-2.0

package excerpt

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestOf(t *testing.T) {
	f := func(s string, maxBytes int, want string) {
		t.Helper()
		if got := Of(s, maxBytes); got != want {
			t.Errorf("Of(%q, %d) = %q, want %q", s, maxBytes, got, want)
		}
	}
	f("", 10, "")
	f("0123456789", 10, "0123456789")
	f("0123456789a", 10, "0123456…")
	f("ééééé", 9, "ééé…") // not in the middle of the fourth
	f("ééééé", 10, "ééééé")
	f("abcdef", 3, "…")
	f("abcdef", 0, "…")
	f("a\xff\xfeb", 10, "a?b")
}

func FuzzOf(f *testing.F) {
	f.Add("a text", 3)
	f.Add("\xff\xffé", 4)
	f.Fuzz(func(t *testing.T, s string, maxBytes int) {
		got := Of(s, maxBytes)
		if len(got) > max(maxBytes, len(ellipsis)) || !utf8.ValidString(got) {
			t.Errorf("Of(%q, %d) = %q", s, maxBytes, got)
		}
		if cut, found := strings.CutSuffix(got, ellipsis); found && utf8.ValidString(s) && !strings.HasPrefix(s, cut) {
			t.Errorf("Of(%q, %d) = %q is not the beginning", s, maxBytes, got)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package termtext

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestTexts(t *testing.T) {
	f := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	f("an escape sequence", Clean("\x1b[2Jroot\u202e\n"), "\uFFFD[2Jroot\uFFFD ")
	f("a name", Clean("日本-1"), "日本-1")
	f("many marks", Clean("e"+strings.Repeat("\u0301", 50)), "e\u0301\u0301")
	f("ASCII", ASCII("2 → 4 · ≥1 –"), "2 > 4 | >1 -")
	f("a wide name", Fit("日本語", 5, false), "日本…")
	f("a number", Fit("12", 4, true), "  12")
	f("both ends", TruncateMiddle("gke-fleet-a3-00907", 12), "gke-…3-00907")
	f("JSON", string(EscapeJSON([]byte(`"a\u202e"`))), `"a\u202e"`)
}

// Whatever a text is, what is written is printable, and as wide as it is to be. JSON keeps its values.
func FuzzTexts(f *testing.F) {
	f.Add("\x1b]0;x\x07 日本\u202e", 7)
	f.Fuzz(func(t *testing.T, s string, n int) {
		n = max(1, n%100)
		clean := Clean(s)
		for _, r := range clean {
			if r < ' ' || IsUnsafe(r) {
				t.Fatalf("%q has %U", clean, r)
			}
		}
		if w := Width(Fit(clean, n, true)); w != n {
			t.Errorf("%q takes %d cells, want %d", clean, w, n)
		}
		if w := Width(TruncateMiddle(clean, n)); w > n {
			t.Errorf("%q takes %d cells, want at most %d", clean, w, n)
		}
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var got, want string
		if json.Unmarshal(b, &want) != nil || json.Unmarshal(EscapeJSON(b), &got) != nil || got != want {
			t.Errorf("%q became %q", want, got)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package child

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f := func(text string, most int, want string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := Tail(path, most); got != want {
			t.Errorf("the last %d bytes of %.40q are %q, want %q", most, text, got, want)
		}
	}
	f("", 3, "")
	f("\n\n", 3, "")
	f("a\n", 3, "a")
	f("a\nbc\nd\n", 4, "d")
	f("a\nbc\nd\n", 5, "bc\nd")
	f(strings.Repeat("x", 20<<10)+"\nend", 10, "end")
}

// SPDX-License-Identifier: Apache-2.0

package gcpace

import (
	"os"
	"path/filepath"
	"testing"
)

func TestContainerLimit(t *testing.T) {
	f := func(content string, want int64) {
		t.Helper()
		name := filepath.Join(t.TempDir(), "memory.max")
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, ok := containerLimit([]string{name + ".not", name})
		if ok != (want > 0) || ok && got != want {
			t.Errorf("%q: %d, %v; want %d", content, got, ok, want)
		}
	}
	f("734003200\n", 700<<20)
	f("max\n", 0)
	f("9223372036854771712\n", 0)
	f("", 0)
	if _, ok := containerLimit([]string{"/not/there"}); ok {
		t.Error("a limit without a file")
	}
}

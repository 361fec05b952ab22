// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWindowMemory(t *testing.T) {
	f := func(value string, want int64) {
		t.Helper()
		c, _, err := parseConfig([]string{"--window-memory", value}, func(string) string { return "" })
		if (err == nil) != (want > 0) {
			t.Errorf("%s: %v", value, err)
		} else if err == nil && c.windowMemory() != want {
			t.Errorf("%s is %d bytes, want %d", value, c.windowMemory(), want)
		}
	}
	f("512Mi", 512<<20)
	f("2G", 2e9)
	f("1Ti", 1<<40)
	f("1Mi", 0)
	f("2Ti", 0)
	f("-1Gi", 0)
	f("much", 0)
}

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

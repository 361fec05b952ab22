// SPDX-License-Identifier: Apache-2.0

package regexpsize

import (
	"strings"
	"testing"
)

func TestInstructions(t *testing.T) {
	f := func(pattern string, atLeast, atMost int) {
		t.Helper()
		if n := Instructions(pattern); n < atLeast || n > atMost {
			t.Errorf("%q: %d instructions, want %d to %d", pattern, n, atLeast, atMost)
		}
	}
	f("", 1, 1)
	f("(", 0, 0)
	f("abc", 1, 8)
	f("[a-z]+", 1, 10)
	f("(?:a{31}){31}", 900, 5000)
	f(strings.Repeat("(?:(?:a{31}){31})", 200), 200_000, 1_000_000)
}

// SPDX-License-Identifier: Apache-2.0

package weight

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
	f(`(a)(b)-(c)`, 5, 20)
	f(strings.Repeat("(.*)", 500), 50_000, 1_000_000) // each match copies 1,000 places
	f(`\pL+-\pN+`, 1000, 10_000)
	f(`(?i)[^a-z]+-\w`, 1900, 2100)
	f(`[^/]+`, 1900, 2100)
	f(`(?si:`+strings.Repeat(`[^a]`, 100)+`)`, 200_000, 200_000)
	f(`(?i)[`+strings.Repeat(`\pL`, 1000)+`]`, 2_000_000, 2_002_000)
	f(strings.Repeat("(?:(?:a{31}){31})", 200), 200_000, 1_000_000)
}

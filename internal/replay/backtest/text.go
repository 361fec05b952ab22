// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// distinct returns the different values of f, in order.
func distinct[E any, T comparable](items []E, f func(*E) T) (out []T) {
	for i := range items {
		if x := f(&items[i]); !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}

// mostFrequent returns the most frequent value of f, the first of several, and its count.
func mostFrequent[E any](items []E, f func(*E) string) (value string, n int) {
	counts := map[string]int{}
	for i := range items {
		counts[f(&items[i])]++
	}
	value = slices.MaxFunc(distinct(items, f), func(a, b string) int { return cmp.Compare(counts[a], counts[b]) })
	return value, counts[value]
}

// count formats a number of things.
func count(n int, singular, plural string) string {
	if n == 1 {
		return "1 " + singular
	}
	return GroupDigits(n) + " " + plural
}

// GroupDigits formats a number in groups of three digits.
func GroupDigits(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:] // narrow no-break space
	}
	return s
}

// hoursText formats hours, or minutes below one hour.
func hoursText(h float64) string {
	switch {
	case h < 0.95:
		return count(int(math.Round(60*h)), "minute", "minutes")
	case h < 9.95 && math.Round(10*h) != 10:
		return fmt.Sprintf("%g hours", math.Round(10*h)/10)
	}
	return count(int(math.Round(h)), "hour", "hours")
}

// enumerate joins names as in "a, b and c".
func enumerate(names []string) string {
	if n := len(names); n > 1 {
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
	return strings.Join(names, "")
}

// shorten shortens a text to n characters.
func shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// shortNumber formats a number with at most four digits.
func shortNumber(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

// seconds converts seconds for printing.
func seconds(s float64) time.Duration { return time.Duration(math.Round(s * float64(time.Second))) }

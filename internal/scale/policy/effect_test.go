// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func compileAll(t testing.TB, all ...string) Compiled {
	t.Helper()
	c, err := Compile(autoscaler(t, minimal+"schedules: ["+strings.Join(all, ", ")+"]"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The windows of a schedule are those that a walk through the minutes finds, also where the
// clock changes.
func TestWindows(t *testing.T) {
	for _, zone := range []string{"Europe/Berlin", "Africa/Cairo", "Australia/Lord_Howe"} {
		for i := range rules {
			c := compileAll(t, fmt.Sprintf("{name: s, timezone: %s, %s}", zone, rules[i].yaml))
			s := &c.Schedules[0]
			for _, from := range []time.Time{time.Date(2026, 3, 27, 5, 30, 0, 0, time.UTC), time.Date(2026, 10, 23, 5, 30, 0, 0, time.UTC)} {
				to := from.Add(4 * 24 * time.Hour)
				windows := s.windows(from, to, 1000)
				for m := from; m.Before(to); m = m.Add(time.Minute) {
					_, end, ok := s.window(m)
					want := ok && m.Before(end)
					got := slices.ContainsFunc(windows, func(w Window) bool { return !m.Before(w.Start) && m.Before(w.End) })
					if got != want {
						t.Fatalf("%s in %s at %v: in a window %v, want %v", rules[i].yaml, zone, m, got, want)
					}
				}
				if !slices.IsSortedFunc(windows, func(a, b Window) int { return a.Start.Compare(b.Start) }) {
					t.Errorf("%s in %s: %v is not in order", rules[i].yaml, zone, windows)
				}
			}
		}
	}
}

func BenchmarkScheduleProblems(b *testing.B) {
	for _, n := range []int{1, 2, 16} {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`{name: s%d, timezone: Europe/Berlin, start: "%02d:00", end: "%02d:00", minReplicas: %d}`, i, i, i+1, 2))
		}
		c := compileAll(b, all...)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if p := c.ScheduleProblems(&c.Policy, time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC), 8*24*time.Hour); p.Unknown {
					b.Fatal("too much work")
				}
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"testing"
	"time"
)

func TestStarts(t *testing.T) {
	var s Durations
	f := func(what string, n int, p50, p95 time.Duration) {
		t.Helper()
		if s.Len() != n || s.Quantile(0.5) != p50 || s.Quantile(0.95) != p95 {
			t.Errorf("%s: %d starts, %v, %v; want %d, %v, %v", what, s.Len(), s.Quantile(0.5), s.Quantile(0.95), n, p50, p95)
		}
	}
	f("none", 0, 0, 0)
	s.Add(40*time.Second + time.Millisecond)
	f("rounded up", 1, 41*time.Second, 41*time.Second)
	s.Add(-time.Second)
	s.Add(2 * longestStart)
	f("out of range", 3, 41*time.Second, longestStart)
	before := s.Clone()
	for i := range 50 {
		s.Add(time.Duration(i) * time.Second)
	}
	f("the last 20", keptStarts, 39*time.Second, 48*time.Second)
	s = before
	f("a copy", 3, 41*time.Second, longestStart)
}

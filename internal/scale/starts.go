// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"slices"
	"time"
)

const (
	// StartsKept is the number of starts that Starts has: enough for a 95th percentile,
	// and few enough to follow a new image soon.
	StartsKept = 20
	// LongestStart bounds the duration of one start.
	LongestStart = time.Hour
)

// Starts are the durations of a workload's last starts, from a pod's creation to its
// readiness. For a pod that waited for a node, a start begins when it is scheduled.
// Their 95th percentile is the Startup of a Policy that has none.
type Starts struct{ durations []time.Duration } // oldest first

// Add adds the newest start.
func (s *Starts) Add(took time.Duration) {
	s.durations = append(s.durations, min(max(took, 0), LongestStart))
	if n := len(s.durations); n > StartsKept {
		s.durations = slices.Delete(s.durations, 0, n-StartsKept)
	}
}

// Len returns the number of starts.
func (s *Starts) Len() int { return len(s.durations) }

// Quantile returns the smallest duration that a share of at least q does not exceed, in
// whole seconds, rounded up, because Kubernetes truncates times to whole seconds; 0
// without a start.
func (s *Starts) Quantile(q float64) time.Duration {
	if len(s.durations) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s.durations))
	d := sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
	return time.Duration(math.Ceil(d.Seconds())) * time.Second
}

// Clone returns a copy.
func (s *Starts) Clone() Starts { return Starts{slices.Clone(s.durations)} }

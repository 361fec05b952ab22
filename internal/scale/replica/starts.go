// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"math"
	"slices"
	"time"
)

const (
	// keptStarts is the number of starts that Durations have: enough for a 95th percentile,
	// and few enough to follow a new image soon.
	keptStarts = 20
	// longestStart bounds the duration of one start.
	longestStart = time.Hour
)

// Durations are the durations of a workload's last starts, from a pod's creation to its
// readiness. For a pod that waited for a node, a start begins when it is scheduled.
// Their 95th percentile is the Startup of a Policy that has none.
type Durations struct{ durations []time.Duration } // oldest first

// Add adds the newest start.
func (s *Durations) Add(took time.Duration) {
	s.durations = append(s.durations, min(max(took, 0), longestStart))
	if n := len(s.durations); n > keptStarts {
		s.durations = slices.Delete(s.durations, 0, n-keptStarts)
	}
}

// Len returns the number of starts.
func (s *Durations) Len() int { return len(s.durations) }

// Quantile returns the smallest duration that a share of at least q does not exceed, in
// whole seconds, rounded up, because Kubernetes truncates times to whole seconds; 0
// without a start.
func (s *Durations) Quantile(q float64) time.Duration {
	if len(s.durations) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s.durations))
	d := sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
	return time.Duration(math.Ceil(d.Seconds())) * time.Second
}

// Clone returns a copy.
func (s *Durations) Clone() Durations { return Durations{slices.Clone(s.durations)} }

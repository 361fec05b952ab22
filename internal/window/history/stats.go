// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"slices"
)

// Stats are the figures of a Store. Counters are since the start.
type Stats struct {
	Workloads int
	Bytes     int64 // memory of all workloads
	Limit     int64 // Config.MaxBytes

	Rows           uint64 // rows that were added
	EvictedRows    uint64 // rows that were dropped because of the memory limit
	RefusedMetrics uint64 // values that were left out because of MaxMetrics or a bad name
}

// Stats returns the store's figures.
func (s *Store) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := s.stats
	out.Bytes, out.Limit = s.bytes, s.cfg.MaxBytes
	for _, n := range s.namespaces {
		out.Workloads += len(n.workloads)
	}
	return out
}

// LimitedNamespace is a namespace that lost rows because of the memory limit.
type LimitedNamespace struct {
	Namespace string
	Bytes     int64
	Evicted   uint64 // rows that it lost
}

// Limited returns the namespaces that lost rows because of the memory limit, largest
// first.
func (s *Store) Limited() []LimitedNamespace {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []LimitedNamespace
	for name, n := range s.namespaces {
		if n.evicted > 0 {
			out = append(out, LimitedNamespace{name, n.bytes, n.evicted})
		}
	}
	slices.SortFunc(out, func(a, b LimitedNamespace) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Namespace, b.Namespace))
	})
	return out
}

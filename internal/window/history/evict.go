// SPDX-License-Identifier: Apache-2.0

package history

import (
	"slices"
	"time"
)

// evict drops the oldest rows of the largest workload of the largest namespace until the
// memory limit holds.
func (s *Store) evict() {
	for s.bytes > s.cfg.MaxBytes {
		n := s.largest()
		w, e := n.largest()
		rows := e.dropOldest()
		n.evicted += rows
		s.stats.EvictedRows += rows
		s.meter(n, w, e)
	}
}

// largest returns the namespace with the most bytes.
func (s *Store) largest() (most *namespace) {
	for _, n := range s.namespaces {
		if most == nil || n.bytes > most.bytes {
			most = n
		}
	}
	return most
}

// largest returns the workload with the most bytes.
func (n *namespace) largest() (w Workload, most *entry) {
	for key, e := range n.workloads {
		if most == nil || e.size > most.size {
			w, most = key, e
		}
	}
	return w, most
}

// dropOldest drops the oldest chunk, and returns its number of rows.
func (e *entry) dropOldest() (rows uint64) {
	if len(e.sealed) == 0 {
		rows = uint64(e.head.rows)
		e.head = chunkWriter{}
		return rows
	}
	rows = uint64(e.sealed[0].rows)
	e.sealed, e.settled = slices.Delete(e.sealed, 0, 1), 0
	return rows
}

// Expire drops the rows that are older than the retention at now, and the workloads that
// have no others. A chunk is dropped when all of its rows are too old.
func (s *Store) Expire(now time.Time) {
	oldest := minuteOf(now) - s.minutes()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.namespaces {
		for w, e := range n.workloads {
			old := 0
			for old < len(e.sealed) && int64(e.sealed[old].last) <= oldest {
				old++
			}
			if old > 0 {
				e.sealed, e.settled = slices.Delete(e.sealed, 0, old), 0
			}
			if e.head.rows > 0 && int64(e.head.last) <= oldest {
				e.head = chunkWriter{}
			}
			s.meter(n, w, e)
		}
	}
}

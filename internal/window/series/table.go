// SPDX-License-Identifier: Apache-2.0

package series

import "maps"

// table is a map of known size. The memory of a map does not shrink: fit copies it.
type table[K comparable, V any] struct {
	entries map[K]V
	peak    int // the most entries since entries was allocated
}

func (t *table[K, V]) put(k K, v V) {
	if t.entries == nil {
		t.entries = map[K]V{}
	}
	t.entries[k] = v
	t.peak = max(t.peak, len(t.entries))
}

// fit copies the map if three quarters of its entries are gone.
func (t *table[K, V]) fit() {
	if t.peak > 64 && len(t.entries) < t.peak/4 {
		t.entries, t.peak = maps.Collect(maps.All(t.entries)), len(t.entries)
	}
}

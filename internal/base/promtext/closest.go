// SPDX-License-Identifier: Apache-2.0

package promtext

import (
	"slices"
	"strings"
)

// maxCompared is the most bytes of a name that is compared with others.
const maxCompared = 100

// Closest returns at most most of these names of metrics, those that are most like a name, without
// itself: the closest first. A name is like another one if at most a quarter of its bytes differ.
func Closest(name string, names []string, most int) []string {
	if len(name) > maxCompared {
		return nil
	}
	want, limit := strings.ToLower(name), max(2, len(name)/4)
	found := make([][]string, limit+1) // by distance
	var rows [2][]int
	for _, other := range slices.Compact(slices.Sorted(slices.Values(names))) {
		if len(other) > maxCompared || other == name {
			continue
		}
		if d := editDistance(&rows, want, strings.ToLower(other), limit); d <= limit {
			found[d] = append(found[d], other)
		}
	}
	out := slices.Concat(found...)
	return out[:min(len(out), most)]
}

// editDistance returns the number of bytes to insert, delete or replace to make b from
// a, or a number above limit. rows is scratch memory.
func editDistance(rows *[2][]int, a, b string, limit int) int {
	if diff := len(a) - len(b); diff > limit || -diff > limit {
		return limit + 1
	}
	for i := range rows {
		rows[i] = slices.Grow(rows[i][:0], len(b)+1)[:len(b)+1]
	}
	last, row := rows[0], rows[1]
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		best := row[0]
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j]+cost, last[j+1]+1, row[j]+1)
			best = min(best, row[j+1])
		}
		if best > limit {
			return limit + 1
		}
		last, row = row, last
	}
	return last[len(b)]
}

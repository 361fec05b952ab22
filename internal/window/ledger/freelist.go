// SPDX-License-Identifier: Apache-2.0

package ledger

// AppendFree appends to a list of free ids, whose capacity never exceeds most. Memory for
// that is charged before anything is freed: freeing never takes memory.
func AppendFree[T any](list []T, id T, most int) []T {
	if len(list) == cap(list) {
		list = append(make([]T, 0, min(2*len(list)+8, most)), list...)
	}
	return append(list, id)
}

// Fit returns a list of free ids with a capacity of at most most.
func Fit[T any](list []T, most int) []T {
	if cap(list) <= most {
		return list
	}
	return append(make([]T, 0, most), list...)
}

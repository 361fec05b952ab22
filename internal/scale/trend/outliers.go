// SPDX-License-Identifier: Apache-2.0

package trend

import (
	"cmp"
	"slices"
)

// LimitOutliers returns the sum of the values, without what n of the few highest have above the
// limit: least, or the others' mean times a factor if that is more. It sorts the values, of which
// there are more than few.
func LimitOutliers(values []float64, few int, least, factor float64) (sum, limit float64, n int) {
	slices.SortFunc(values, func(a, b float64) int { return cmp.Compare(b, a) })
	for _, v := range values[few:] {
		sum += v
	}
	limit = max(least, factor*sum/float64(len(values)-few))
	for _, v := range values[:few] {
		if sum += min(v, limit); v > limit {
			n++
		}
	}
	return sum, limit, n
}

// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"math"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
)

// maxCount is the number up to which a float64 has every whole number, 2^53.
const maxCount = 1 << 53

// quantity returns v as a decimal quantity. Whole numbers are exact up to 2^63, where
// they saturate. Fractions are rounded to the precision of v: to 1e-9, from 9e6 on to
// 1e-6, from 9e9 on to 1e-3, and from 9e12 on to whole numbers. v must not be NaN or
// infinite. The HPA computes in thousandths, rounded up.
func quantity(v float64) resource.Quantity {
	if v == math.Trunc(v) {
		return *resource.NewQuantity(whole(v), resource.DecimalSI)
	}
	for scale := resource.Nano; scale < 0; scale += 3 {
		if count := math.Round(v * math.Pow10(-int(scale))); math.Abs(count) < maxCount {
			return *resource.NewScaledQuantity(int64(count), scale)
		}
	}
	return *resource.NewQuantity(whole(math.Round(v)), resource.DecimalSI)
}

// maxPlain is the limit of the numbers that appendQuantity writes without a Quantity.
const maxPlain = 1e12

// appendQuantity appends quantity(v) as text. Most values have up to three decimals
// and are written directly. A Quantity would be slower: it finds its suffix by
// repeated division.
func appendQuantity(b []byte, v float64) []byte {
	if v > -maxPlain && v < maxPlain {
		if n := int64(v); float64(n) == v && n%1000 != 0 {
			return strconv.AppendInt(b, n, 10)
		}
		if n := int64(math.Round(v * 1e3)); n%1000 != 0 && isThousandths(v, n) {
			return append(strconv.AppendInt(b, n, 10), 'm')
		}
	}
	q := quantity(v)
	number, suffix := q.CanonicalizeBytes(make([]byte, 0, 32))
	return append(append(b, number...), suffix...)
}

// isThousandths reports whether v, rounded as quantity does, is n thousandths.
func isThousandths(v float64, n int64) bool {
	nano := math.Round(v * 1e9)
	return math.Abs(nano) < maxCount && nano == float64(n)*1e6
}

// whole returns v, a number without a fraction, as the nearest int64.
func whole(v float64) int64 {
	switch {
	case v >= math.MaxInt64:
		return math.MaxInt64
	case v <= math.MinInt64:
		return math.MinInt64
	}
	return int64(v)
}

// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"math"

	"k8s.io/apimachinery/pkg/api/resource"
)

// The largest magnitudes that still fit an int64 when counted in billionths
// and in millionths, with room to spare.
const (
	maxNano  = 9e9
	maxMicro = 9e12
)

// quantity is v as a decimal quantity: whole numbers exactly up to 2^63,
// fractions to the billionth (to the millionth from 9e9 on, where a float64
// has no more). Larger numbers saturate. v is neither NaN nor infinite. The
// HPA itself computes in thousandths, rounded up.
func quantity(v float64) resource.Quantity {
	switch a := math.Abs(v); {
	case a >= math.MaxInt64:
		if v < 0 {
			return *resource.NewQuantity(math.MinInt64, resource.DecimalSI)
		}
		return *resource.NewQuantity(math.MaxInt64, resource.DecimalSI)
	case v == math.Trunc(v), a >= maxMicro:
		return *resource.NewQuantity(int64(math.Round(v)), resource.DecimalSI)
	case a >= maxNano:
		return *resource.NewScaledQuantity(int64(math.Round(v*1e6)), resource.Micro)
	}
	return *resource.NewScaledQuantity(int64(math.Round(v*1e9)), resource.Nano)
}

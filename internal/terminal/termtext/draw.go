// SPDX-License-Identifier: Apache-2.0

package termtext

import (
	"math"
	"strings"
)

// Spark draws values from 0 to 100 as a curve, a cell for each. NaN is a gap.
func Spark(values []float64, ascii bool) string {
	levels := []rune("▁▂▃▄▅▆▇█")
	if ascii {
		levels = []rune("_.:-=+*#")
	}
	var b strings.Builder
	for _, v := range values {
		if math.IsNaN(v) {
			b.WriteByte(' ')
			continue
		}
		b.WriteRune(levels[int(min(float64(len(levels)-1), max(0, v/100*float64(len(levels)))))])
	}
	return b.String()
}

// Bar draws a share from 0 to 1 in n cells. ASCII knows its characters.
func Bar(share float64, n int) string {
	k := int(math.Round(min(1, max(0, share)) * float64(n)))
	if k == 0 && share > 0.005 {
		k = 1
	}
	return strings.Repeat("█", k) + strings.Repeat("░", n-k)
}

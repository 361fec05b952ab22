// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"slices"
	"testing"
	"time"
)

// A want of the last seconds that is inside the range of the one before costs
// no copy, and no call writes to the wants that it was given.
func TestRememberSharesButNeverWrites(t *testing.T) {
	t0 := time.Unix(1_000_000, 0)
	var wants []Want
	for i := range 200 {
		before := slices.Clone(wants)
		n := int32(5 + i/10%3)
		after := remember(wants, Want{At: t0.Add(time.Duration(i) * time.Second), Low: n, High: n}, time.Minute)
		other := remember(wants, Want{At: t0.Add(time.Duration(i) * time.Second), Low: 0, High: 99}, time.Minute)
		if !slices.Equal(wants, before) {
			t.Fatalf("after %d s the wants that were given changed", i)
		}
		if last := after[len(after)-1]; last.Low == 0 || other[len(other)-1].High != 99 {
			t.Fatalf("after %d s two calls share what they wrote", i)
		}
		wants = after
	}
}

// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"math"
	"testing"
)

func TestShare(t *testing.T) {
	f := func(want string, capacity, honest int64, sizes map[string][]int64) {
		t.Helper()
		var all []Account
		for _, members := range sizes {
			g := &Group{}
			for _, n := range members {
				all = append(all, Account{g, n})
			}
		}
		got := share(all, capacity, honest)
		show := func(n int64) any {
			if n == math.MaxInt64 {
				return "-"
			}
			return n
		}
		var members []int64
		for _, n := range got.members {
			members = append(members, n)
		}
		if got := fmt.Sprint(show(got.target), " ", show(got.level), " ", members); got != want {
			t.Errorf("%v of %d: target, group, members %s; want %s", sizes, capacity, got, want)
		}
	}
	f("- - []", 100, 10, map[string][]int64{"a": {50}, "b": {50}})
	f("80 - []", 100, 10, map[string][]int64{"a": {20}, "b": {500}})
	f("45 - []", 100, 10, map[string][]int64{"a": {10}, "b": {500}, "c": {50}})
	// All shrink to an honest size before a small one shrinks; then groups do.
	f("30 40 [10]", 100, 30, map[string][]int64{"a": {30}, "b": {30}, "c": {10, 10, 30, 500}})
}

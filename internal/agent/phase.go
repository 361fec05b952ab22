// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"hash/fnv"
	"time"
)

// Phase is how long after each whole multiple of the interval since 1970 the
// node's ticks are. It is the same in every process, so that who scrapes can
// come just after a tick, and it differs between nodes, so that a fleet's ticks
// do not coincide.
func Phase(node string, interval time.Duration) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(node)) // a hash's Write does not fail
	return time.Duration(h.Sum64() % uint64(interval))
}

// untilTick is the time from now to the next tick. A tick that is due within a
// hundredth of the interval is left out: it is the one that was just made,
// before the clock was set back a little.
func untilTick(now time.Time, interval, phase time.Duration) time.Duration {
	since := time.Duration(now.UnixNano()-int64(phase)) % interval
	d := interval - since
	if d < interval/100 {
		d += interval
	}
	return d
}

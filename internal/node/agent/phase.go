// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"hash/fnv"
	"time"
)

// Phase returns the offset of the node's ticks from whole multiples of the
// interval since 1970. It is the same in every process, so that a scraper can
// scrape just after a tick. It differs between nodes, so that a fleet's ticks
// do not coincide.
func Phase(node string, interval time.Duration) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(node)) // a hash's Write does not fail
	return time.Duration(h.Sum64() % uint64(interval))
}

// untilTick returns the time from now to the next tick. It skips a tick that is
// due within a hundredth of the interval: that tick was just made, and the
// clock was then set back a little.
func untilTick(now time.Time, interval, phase time.Duration) time.Duration {
	since := time.Duration(now.UnixNano()-int64(phase)) % interval
	d := interval - since
	if d < interval/100 {
		d += interval
	}
	return d
}

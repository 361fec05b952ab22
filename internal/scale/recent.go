// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"slices"
	"time"
)

// Want is the range of replicas that the signals wanted around one moment.
type Want struct {
	At   time.Time `json:"at"`
	Low  int32     `json:"low"`
	High int32     `json:"high"`
}

// Change is an observed change of spec.replicas, whoever made it.
type Change struct {
	At    time.Time `json:"at"`
	Delta int32     `json:"delta"`
}

// The bounds of the lists: 64 wants over a 5-minute window keep 4.7 s of
// resolution, and no rate policy needs finer changes than its period ÷ 256.
const (
	maxWants   = 64
	maxChanges = 256
)

// isRecent reports whether at lies within window before now. A time in the
// future is not recent: it would count until the clock reaches it.
func isRecent(at, now time.Time, window time.Duration) bool {
	age := now.Sub(at)
	return age >= 0 && age <= window
}

// remember returns wants with w, without those older than window. It never
// writes to wants.
func remember(wants []Want, w Want, window time.Duration) []Want {
	old := func(x Want) bool { return !isRecent(x.At, w.At, window) }
	for len(wants) > 0 && old(wants[0]) {
		wants = wants[1:]
	}
	if slices.ContainsFunc(wants, old) {
		wants = slices.DeleteFunc(slices.Clone(wants), old)
	}
	n := len(wants)
	if n > 0 && w.At.Sub(wants[n-1].At) < window/maxWants {
		last := wants[n-1]
		low, high := min(last.Low, w.Low), max(last.High, w.High)
		if low != last.Low || high != last.High {
			wants = slices.Clone(wants)
			wants[n-1].Low, wants[n-1].High = low, high
		}
		return wants
	}
	wants = wants[max(0, n-maxWants+1):]
	return slices.Concat(wants, []Want{w})
}

// extremes returns the lowest and highest want within window before now.
func extremes(wants []Want, now time.Time, window time.Duration) (lowest, highest int32, ok bool) {
	for _, w := range wants {
		if !isRecent(w.At, now, window) {
			continue
		}
		if !ok {
			lowest, highest, ok = w.Low, w.High, true
			continue
		}
		lowest, highest = min(lowest, w.Low), max(highest, w.High)
	}
	return lowest, highest, ok
}

// latestWant returns the last time within window before now at which n replicas or more were wanted; zero: none.
func latestWant(wants []Want, now time.Time, window time.Duration, n int32) time.Time {
	for _, w := range slices.Backward(wants) {
		if w.High >= n && isRecent(w.At, now, window) {
			return w.At
		}
	}
	return time.Time{}
}

// record returns changes with c, without those older than period. It never
// writes to changes.
func record(changes []Change, c Change, period time.Duration) []Change {
	old := func(x Change) bool { return !isRecent(x.At, c.At, period) }
	if slices.ContainsFunc(changes, old) {
		changes = slices.DeleteFunc(slices.Clone(changes), old)
	}
	if c.Delta == 0 {
		return changes
	}
	changes = changes[max(0, len(changes)-maxChanges+1):]
	return slices.Concat(changes, []Change{c})
}

// moved sums the changes in one direction within period, as a number ≥ 0.
func moved(changes []Change, now time.Time, period time.Duration, down bool) (n int32) {
	for _, c := range changes {
		if age := now.Sub(c.At); age < 0 || age >= period {
			continue
		}
		if down && c.Delta < 0 {
			n -= c.Delta
		}
		if !down && c.Delta > 0 {
			n += c.Delta
		}
	}
	return n
}

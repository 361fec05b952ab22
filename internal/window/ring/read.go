// SPDX-License-Identifier: Apache-2.0

package ring

import "time"

// Latest returns a column's newest value that is not older than notBefore.
func (r *Ring) Latest(c Column, notBefore int64) (Stamped, bool) {
	for i := r.used - 1; i >= 0; i-- {
		slot := r.Slot(i)
		if r.stamps[slot] < notBefore {
			break
		}
		if v, ok := r.At(c, slot); ok {
			return Stamped{r.stamps[slot], v}, true
		}
	}
	return Stamped{}, false
}

// Step returns a column's two newest values. The newest must not be older than
// notBefore, and the one before it not older than from.
func (r *Ring) Step(c Column, from, notBefore int64) (older, newest Stamped, ok bool) {
	for i := r.used - 1; i >= 0; i-- {
		slot := r.Slot(i)
		if stamp := r.stamps[slot]; stamp < from || !ok && stamp < notBefore {
			break
		}
		v, there := r.At(c, slot)
		switch {
		case !there:
		case !ok:
			newest, ok = Stamped{r.stamps[slot], v}, true
		default:
			older = Stamped{r.stamps[slot], v}
			return older, newest, true
		}
	}
	return Stamped{}, Stamped{}, false
}

// Rate returns the increase per second of a counter's column, from its first value at
// or after from to its newest, which must not be older than notBefore. A decrease is
// a restart of the counter at zero.
func (r *Ring) Rate(c Column, from, notBefore int64) (Stamped, bool) {
	var sum, prev float64
	var first, last int64
	for i := r.Search(from); i < r.used; i++ {
		slot := r.Slot(i)
		v, ok := r.At(c, slot)
		if !ok {
			continue
		}
		switch {
		case first == 0:
			first = r.stamps[slot]
		case v >= prev:
			sum += v - prev
		default:
			sum += v
		}
		prev, last = v, r.stamps[slot]
	}
	if first == 0 || last == first || last < notBefore {
		return Stamped{}, false
	}
	return Stamped{last, sum / time.Duration(last-first).Seconds()}, true
}

// Between returns the indexes of the timestamps within [from, to]: from first to before end.
func (r *Ring) Between(from, to int64) (first, end int) {
	end = r.used
	if newest, ok := r.Newest(); ok && newest > to {
		end = r.Search(to + 1)
	}
	return r.Search(from), end
}

// Search returns the index of the first timestamp at or after t.
func (r *Ring) Search(t int64) int {
	lo, hi := 0, r.used
	for lo < hi {
		mid := (lo + hi) / 2
		if r.stamps[r.Slot(mid)] < t {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

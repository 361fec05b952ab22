// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"fmt"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/page"
)

const (
	// clockAhead is the error of a clock that is accepted without a correction. NTP
	// keeps clocks within it.
	clockAhead = 100 * time.Millisecond
	// clockDrift is how far ahead a newer page may be at once. The clock is then
	// corrected by it.
	clockDrift = time.Second
	// steady is how often another clock must advance from one page to the next before it
	// is used. No page in between is new by the present clock.
	steady = 5
)

// clock orders a target's pages by the times that they show, and converts these times
// to ours. Only a page that is newer than all pages before is new: a cache in front of
// the target may answer with old pages.
//
// A time is plausible if it is not in the future, and not older than a page usually is.
// Plausible times are not changed. If times are implausible but advance as ours do, page
// after page, then the target's clock is wrong or was set. The difference is then
// measured: the page counts as collected at its arrival, which may be up to one interval
// too late.
type clock struct {
	newest time.Time     // the target's time on the newest page
	at     time.Time     // the same in our clock
	offset time.Duration // is added to the target's times
	others [2]otherClock // two, because old pages of a cache may be between new ones
}

// otherClock is a clock that pages show instead of the present one.
type otherClock struct {
	newest time.Time
	offset time.Duration
	pages  int // that continue it, less those of neither clock; 0: it is unused
}

// age returns how old a page of the time raw is.
func age(raw, arrived time.Time, offset time.Duration) time.Duration {
	return arrived.Sub(raw.Add(offset))
}

// local returns the time of a page in our clock. raw is the target's time. isNew is
// false if the page must not be used: it is not newer than an earlier one, or its clock
// is another one and has not stayed long enough. The time is then that of the newest page.
func (c *clock) local(raw, arrived time.Time, m page.Meta) (at time.Time, isNew bool) {
	most := oldest(m)
	old := age(raw, arrived, c.offset)
	isNewer := raw.After(c.newest)
	switch {
	case old >= -clockAhead && old <= most:
		if !isNewer {
			return c.at, false
		}
	case isNewer && old < 0 && old >= -clockDrift:
		c.offset += old
	case isNewer && raw.After(c.at) && age(raw, arrived, 0) >= -clockAhead && age(raw, arrived, 0) <= most:
		c.offset = 0 // it is our time again
	case raw.Equal(c.newest):
		return c.at, false
	default:
		offset, ok := c.stays(raw, arrived, most)
		if !ok || !raw.Add(offset).After(c.at) {
			return c.at, false
		}
		c.offset = offset
	}
	if c.offset.Abs() < clockAhead {
		c.offset = 0
	}
	c.newest, c.at, c.others = raw, raw.Add(c.offset), [2]otherClock{}
	return c.at, true
}

// oldest returns the age up to which the time of a page is plausible. Its values still
// count when the next page is due.
func oldest(m page.Meta) time.Duration {
	every := seconds(m.Interval)
	return gpu.MaxAge(every) - max(every, time.Second) + seconds(m.Took)
}

// stays counts a page of another clock. ok reports whether that clock has stayed long
// enough; offset converts its times.
func (c *clock) stays(raw, arrived time.Time, most time.Duration) (offset time.Duration, ok bool) {
	var free *otherClock
	for i := range c.others {
		x := &c.others[i]
		if x.pages == 0 {
			free = x
			continue
		}
		if old := age(raw, arrived, x.offset); old.Abs() <= most {
			if raw.After(x.newest) {
				x.newest, x.offset = raw, x.offset+min(old, 0)
				x.pages++
			}
			return x.offset, x.pages > steady && raw.Equal(x.newest)
		}
	}
	if free != nil {
		*free = otherClock{raw, age(raw, arrived, 0), 1}
		return 0, false
	}
	for i := range c.others {
		c.others[i].pages--
	}
	return 0, false
}

// describe says why a page of the time raw is not used.
func (c *clock) describe(raw time.Time) string {
	since := c.newest.UTC().Format(time.RFC3339Nano)
	switch {
	case raw.Equal(c.newest):
		return "collection time has not changed since " + since
	case c.newest.IsZero():
		return fmt.Sprintf("collection time %s is not this host's, and is used once %d pages have followed", raw.UTC().Format(time.RFC3339Nano), steady)
	}
	return fmt.Sprintf("collection time is %s, after %s on an earlier page: a cache in front of it answers, or its clock was set and is used once %d pages have followed",
		raw.UTC().Format(time.RFC3339Nano), since, steady)
}

// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// cron is a parsed cron expression: the set bits of each field are the values that match.
type cron struct {
	minutes, hours, days, months, weekdays uint64
	// eitherDay is set if days and weekdays are both limited: then one of them has to match.
	eitherDay bool
}

var (
	monthNames   = []string{"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"}
	weekdayNames = []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}
)

// parseCron parses the five fields minute, hour, day of the month, month and day of the
// week: *, numbers, names, lists, ranges and steps.
func parseCron(text string) (c cron, err error) {
	fields := strings.Fields(text)
	if len(fields) != 5 {
		return c, errors.New("want five fields: minute, hour, day of the month, month, day of the week")
	}
	for i, f := range []struct {
		name    string
		into    *uint64
		low, up int
		names   []string
	}{
		{"minute", &c.minutes, 0, 59, nil},
		{"hour", &c.hours, 0, 23, nil},
		{"day of the month", &c.days, 1, 31, nil},
		{"month", &c.months, 1, 12, monthNames},
		{"day of the week", &c.weekdays, 0, 7, weekdayNames},
	} {
		if *f.into, err = parseCronField(fields[i], f.low, f.up, f.names); err != nil {
			return c, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	c.weekdays |= c.weekdays >> 7 // 7 is Sunday, too
	c.eitherDay = !strings.HasPrefix(fields[2], "*") && !strings.HasPrefix(fields[4], "*")
	return c, nil
}

func parseCronField(field string, low, up int, names []string) (set uint64, _ error) {
	for _, part := range strings.Split(field, ",") {
		span, stepText, hasStep := strings.Cut(part, "/")
		first, last := low, up
		if span != "*" {
			from, to, isRange := strings.Cut(span, "-")
			var err error
			if first, err = cronNumber(from, low, up, names); err != nil {
				return 0, err
			}
			if last = first; isRange {
				if last, err = cronNumber(to, low, up, names); err != nil {
					return 0, err
				}
			} else if hasStep {
				last = up
			}
			if last < first {
				return 0, fmt.Errorf("%q ends before it starts", span)
			}
		}
		step := 1
		if hasStep {
			var err error
			if step, err = cronNumber(stepText, 1, up, nil); err != nil {
				return 0, err
			}
		}
		for n := first; n <= last; n += step {
			set |= 1 << n
		}
	}
	return set, nil
}

func cronNumber(text string, low, up int, names []string) (int, error) {
	for i, name := range names {
		if strings.EqualFold(text, name) {
			return i + low, nil
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > up || strings.HasPrefix(text, "+") {
		return 0, fmt.Errorf("%q is not a number from %d to %d", text, low, up)
	}
	return n, nil
}

func (c *cron) matchesDay(d time.Time) bool {
	if c.months&(1<<d.Month()) == 0 {
		return false
	}
	day, weekday := c.days&(1<<d.Day()) != 0, c.weekdays&(1<<d.Weekday()) != 0
	if c.eitherDay {
		return day || weekday
	}
	return day && weekday
}

// before returns the last time of the expression that is not after wall. It looks back at
// least longest, a day and a change of the clock. Times are those of a clock on the wall, as if it showed UTC.
func (c *cron) before(wall time.Time, longest time.Duration) (time.Time, bool) {
	day := time.Date(wall.Year(), wall.Month(), wall.Day(), 0, 0, 0, 0, time.UTC)
	hour, minute := wall.Hour(), wall.Minute()
	for ; !day.Before(wall.Add(-longest - 50*time.Hour)); day = day.AddDate(0, 0, -1) {
		if c.matchesDay(day) {
			for h := highest(c.hours, hour); h >= 0; h = highest(c.hours, h-1) {
				latest := 59
				if h == hour {
					latest = minute
				}
				if m := highest(c.minutes, latest); m >= 0 {
					return day.Add(time.Duration(h)*time.Hour + time.Duration(m)*time.Minute), true
				}
			}
		}
		hour, minute = 23, 59
	}
	return time.Time{}, false
}

// highest returns the highest set bit up to n; -1: there is none.
func highest(set uint64, n int) int {
	if n < 0 {
		return -1
	}
	return bits.Len64(set&(1<<(n+1)-1)) - 1
}

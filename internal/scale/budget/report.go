// SPDX-License-Identifier: Apache-2.0

package budget

import "time"

// Report says how well an objective is kept.
type Report struct {
	Ended          float64 // requests within the time that counts
	Missed         float64 // of these, at least
	MissedMost     float64 // of these, at most
	Attained       float64 // share of the requests that kept the limits, at least; without requests no value has a meaning
	AttainedMost   float64 // at most
	BudgetLeft     float64 // share of the allowed misses that is left, at least; negative: more were missed
	BudgetLeftMost float64 // at most
	Since          time.Time
	Burns          [len(Windows)]Burn
}

// Burn is how fast the error budget is used in a window: 1 uses it up in just the time
// that counts.
type Burn struct {
	Requests float64 // that ended in the window; 0: Rate has no meaning
	Rate     float64 // by the requests that certainly missed
}

// Windows are those of burn rates.
var Windows = [...]struct {
	Name   string
	Length time.Duration
}{
	{"5m", 5 * time.Minute}, {"30m", 30 * time.Minute}, {"1h", time.Hour}, {"6h", 6 * time.Hour}, {"3d", 72 * time.Hour},
}

// Alerts are the burn rates at which somebody has to act, in a long window and, so that an
// alert ends soon, in a short one. They are indexes of Windows.
var (
	Fast   = Alert{Long: 2, Short: 0, Rate: 14.4} // 2 % of 30 days' budget in an hour
	Slow   = Alert{Long: 3, Short: 1, Rate: 6}    // 5 % in 6 hours
	Slower = Alert{Long: 4, Short: 3, Rate: 1}    // 10 % in 3 days
)

// Alert is a burn rate in two windows.
type Alert struct {
	Long, Short int
	Rate        float64
}

// Fires reports whether the budget burns faster than the alert's rate.
func (a *Alert) Fires(r *Report) bool {
	is := func(i int) bool { return r.Burns[i].Requests > 0 && r.Burns[i].Rate > a.Rate }
	return is(a.Long) && is(a.Short)
}

// Report reports on an objective, a share of the requests below 1, over a time until now.
func (l *Ledger) Report(now time.Time, objective float64, over time.Duration) Report {
	allowed := 1 - objective
	sum := l.Sum(now, over)
	r := Report{Ended: sum.Ended, Since: l.since}
	r.Missed, r.MissedMost = sum.Missed()
	if r.Ended > 0 {
		r.Attained, r.AttainedMost = 1-r.MissedMost/r.Ended, 1-r.Missed/r.Ended
		r.BudgetLeft, r.BudgetLeftMost = 1-r.MissedMost/(allowed*r.Ended), 1-r.Missed/(allowed*r.Ended)
	}
	for i := range Windows {
		c := l.Sum(now, Windows[i].Length)
		if r.Burns[i].Requests = c.Ended; c.Ended > 0 {
			missed, _ := c.Missed()
			r.Burns[i].Rate = missed / c.Ended / allowed
		}
	}
	return r
}

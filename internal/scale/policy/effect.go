// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale"
)

// Window is a window of a schedule. It is empty if the clock skips it.
type Window struct{ Start, End time.Time }

// windows returns the windows of a schedule that end after from and start before to, oldest
// first; with at least most of them it stops.
func (s *Schedule) windows(from, to time.Time, most int) (out []Window) {
	for t := to.Add(-1); !t.Before(from.Add(-longestWindow)) && len(out) < most; {
		start, end, ok := s.window(t)
		if !ok {
			t = t.AddDate(0, 0, -1) // it has looked back further than a day
			continue
		}
		if end.After(from) {
			out = append(out, Window{start, end})
		}
		t = start.Add(-1)
	}
	slices.Reverse(out)
	return out
}

// never reports whether no window of a schedule ever starts.
func (s *Schedule) never() bool {
	if s.cron == nil {
		return false
	}
	day := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	for end := day.AddDate(28, 0, 0); day.Before(end); day = day.AddDate(0, 0, 1) { // days of the week recur after 28 years
		if s.cron.matchesDay(day) {
			return false
		}
	}
	return true
}

// ScheduleProblems are sentences about schedules, each with the schedule's name.
type ScheduleProblems struct {
	Idle []string // it changes no bound
	Lead []string // its lead time does not fit the start-up or the windows
	// Clock are about windows that the clock of their zone skips in part.
	Clock []string
	// Unknown is set if there are too many windows to look at all of them.
	Unknown bool
	// Work is the number of times that a schedule was evaluated.
	Work int
}

const (
	// maxWindows bounds the windows of a schedule that are looked at, and maxWork the work:
	// 16 schedules with a window a day are 110,000, in a tenth of a second.
	maxWindows = 100
	maxWork    = 150_000
	neverWork  = 400 // of looking at each day of 28 years
	// lateStart is how late replicas serve that is not worth a sentence.
	lateStart = 30 * time.Second
)

// ScheduleProblems looks at the schedules from now to the end of span, which is at least a
// week: schedules by days of the week have all of their windows then. p has the start-up of
// a replica.
func (c *Compiled) ScheduleProblems(p *scale.Policy, now time.Time, span time.Duration) (out ScheduleProblems) {
	all, until := make([][]Window, len(c.Schedules)), now.Add(span)
	points := []time.Time{now} // between them no bound changes
	for i := range c.Schedules {
		s := &c.Schedules[i]
		all[i] = s.windows(now, until, maxWindows)
		out.Work += 1 + len(all[i])
		if out.Unknown = len(all[i]) == maxWindows || 3*out.Work*len(all)*len(all) > maxWork; out.Unknown {
			return out
		}
		for _, w := range all[i] {
			points = append(points, w.Start.Add(-s.leadTime(p)), w.Start, w.End)
		}
		if text := s.leadProblem(p, all[i]); text != "" {
			out.Lead = append(out.Lead, text)
		}
		if text := s.clockProblem(now, all[i]); text != "" {
			out.Clock = append(out.Clock, text)
		}
	}
	points = slices.DeleteFunc(points, func(t time.Time) bool { return t.Before(now) || !t.Before(until) })
	out.Work += len(points) * len(all) * len(all)
	for i := range c.Schedules {
		s := &c.Schedules[i]
		if len(all[i]) == 0 {
			out.Work += neverWork
		}
		switch {
		case len(all[i]) == 0 && s.never():
			out.Idle = append(out.Idle, fmt.Sprintf("schedule %s: no day matches its cron expression", s.Name))
		case len(all[i]) > 0 && !c.changesBounds(i, p, points):
			out.Idle = append(out.Idle, fmt.Sprintf("schedule %s: with it and without it the bounds are the same, in all windows until %s", s.Name, Clock(until)))
		}
	}
	return out
}

// changesBounds reports whether a schedule changes a bound at one of the points.
func (c *Compiled) changesBounds(i int, p *scale.Policy, points []time.Time) bool {
	without := Compiled{Schedules: slices.Delete(slices.Clone(c.Schedules), i, i+1)}
	for _, t := range points {
		a, b := *p, *p
		c.applySchedules(&a, t)
		without.applySchedules(&b, t)
		if a.Min != b.Min || a.Max != b.Max {
			return true
		}
	}
	return false
}

// leadTime is how much earlier than a window its minimum applies.
func (s *Schedule) leadTime(p *scale.Policy) time.Duration {
	switch {
	case s.least == nil:
		return 0
	case s.lead == autoLead:
		return leadOf(p)
	}
	return s.lead
}

// leadProblem says why a given lead time does not do what it is for. A lead time of 0 is
// none, by intent.
func (s *Schedule) leadProblem(p *scale.Policy, windows []Window) string {
	if s.least == nil || s.lead <= 0 {
		return ""
	}
	if late := p.Startup - s.lead; p.Startup > 0 && late >= lateStart {
		return fmt.Sprintf("schedule %s: leadTime is %d s, and a replica takes up to %d s to serve: replicas serve %d s after the start",
			s.Name, int(s.lead.Seconds()), int(p.Startup.Seconds()), int(late.Seconds()))
	}
	gap := time.Duration(0)
	for i := 1; i < len(windows); i++ {
		gap = max(gap, windows[i].Start.Sub(windows[i-1].End))
	}
	if len(windows) > 1 && gap > 0 && gap <= s.lead {
		return fmt.Sprintf("schedule %s: leadTime is %d s, and the next window starts at most %d s after the end of one: minReplicas always applies",
			s.Name, int(s.lead.Seconds()), int(gap.Seconds()))
	}
	return ""
}

// clockProblem says which window from now on the clock of the zone skips in part.
func (s *Schedule) clockProblem(now time.Time, windows []Window) string {
	for _, w := range windows {
		what := "end"
		switch {
		case w.End.Before(now):
			continue
		case !s.startsAt(w.Start):
			what = "start"
		case s.cron != nil || s.shows(w.End, s.end):
			continue
		}
		when := fmt.Sprintf("is from %s to %s", Clock(w.Start), Clock(w.End))
		if !w.End.After(w.Start) {
			when = "at " + Clock(w.Start) + " is empty"
		}
		return fmt.Sprintf("schedule %s: the clock of %s skips the %s of a window, which %s", s.Name, s.zone, what, when)
	}
	return ""
}

// shows reports whether the clock of the zone shows a time of the day.
func (s *Schedule) shows(t time.Time, clock time.Duration) bool {
	l := t.In(s.zone)
	return time.Duration(l.Hour())*time.Hour+time.Duration(l.Minute())*time.Minute == clock
}

// startsAt reports whether the clock shows a start of a window; else it has skipped it.
func (s *Schedule) startsAt(t time.Time) bool {
	if s.cron == nil {
		return s.shows(t, s.start)
	}
	l := t.In(s.zone)
	return s.cron.minutes&(1<<l.Minute()) != 0 && s.cron.hours&(1<<l.Hour()) != 0 && s.cron.matchesDay(l)
}

// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"time"
	_ "time/tzdata" // the images have no time zones

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
)

const (
	maxSchedules = 16
	maxName      = 63
	maxTimeZone  = 64 // bytes
	// longestWindow bounds the duration of a cron schedule.
	longestWindow = 7 * 24 * time.Hour
	maxLead       = 24 * time.Hour
)

// Schedule bounds the replicas within windows of time that recur.
type Schedule struct {
	Name        string
	least, most *int32 // bounds within a window
	zone        *time.Location
	lead        time.Duration // how much earlier least applies; autoLead: by the start-up

	cron       *cron
	length     time.Duration // of a window of cron
	days       [7]bool       // on which a window starts, without cron
	start, end time.Duration // on the clock of a day, without cron
}

// autoLead is the lead time that is the start-up of a replica.
const autoLead time.Duration = -1

// window returns the last window that starts at or before t; ok is false if it ended long
// ago, or never was.
func (s *Schedule) window(t time.Time) (start, end time.Time, ok bool) {
	wall := latestWall(t, s.zone)
	if s.cron != nil {
		from, ok := s.cron.before(wall, s.length)
		if !ok {
			return start, end, false
		}
		start = instant(from, s.zone)
		return start, start.Add(s.length), true
	}
	day := time.Date(wall.Year(), wall.Month(), wall.Day(), 0, 0, 0, 0, time.UTC)
	if day.Add(s.start).After(wall) {
		day = day.AddDate(0, 0, -1)
	}
	for range 2 { // a window ends within a day, and a day may be skipped
		if s.days[day.Weekday()] {
			last := day.Add(s.end)
			if s.end <= s.start {
				last = last.AddDate(0, 0, 1)
			}
			return instant(day.Add(s.start), s.zone), instant(last, s.zone), true
		}
		day = day.AddDate(0, 0, -1)
	}
	return start, end, false
}

// instant returns when the clock of a zone first shows wall, which is written as if it were
// UTC, or a later time: an hour that the clock skips begins when it has skipped it, and of
// an hour that it shows twice the first counts.
func instant(wall time.Time, zone *time.Location) time.Time {
	t := wall.Add(-26 * time.Hour).In(zone) // before the clock shows it, in any zone
	for {
		_, offset := t.Zone()
		at := wall.Add(-time.Duration(offset) * time.Second)
		if at.Before(t) {
			return t // it was skipped
		}
		_, next := t.ZoneBounds()
		if next.IsZero() || at.Before(next) {
			return at
		}
		t = next
	}
}

// latestWall returns the latest time that the clock of a zone has shown up to t, to the
// minute and as if it were UTC. It is not what it shows if it was set back before.
func latestWall(t time.Time, zone *time.Location) time.Time {
	shown := func(t time.Time) time.Time {
		_, offset := t.Zone()
		return t.Add(time.Duration(offset) * time.Second).UTC().Truncate(time.Minute)
	}
	t = t.In(zone)
	latest, began := shown(t), t
	for {
		began, _ = began.ZoneBounds()
		if began.IsZero() || t.Sub(began) > 26*time.Hour {
			return latest
		}
		began = began.Add(-time.Nanosecond)
		if before := shown(began); before.After(latest) {
			latest = before
		}
	}
}

// applySchedules sets the bounds of the schedules that are active at now in p, and returns
// their names. The highest minimum and the lowest maximum count, in place of those of the
// spec. A schedule's minimum takes precedence over a lower maximum, and its maximum over
// the minimum of the spec.
func (c *Compiled) applySchedules(p *scale.Policy, now time.Time) (active []string) {
	var least, most *int32
	for i := range c.Schedules {
		s := &c.Schedules[i]
		lead := s.lead
		if lead == autoLead {
			lead = leadOf(p)
		}
		by := scale.Origin{Rule: scale.RuleSchedule, Text: "schedule " + s.Name}
		_, end, ok := s.window(now)
		within := ok && now.Before(end)
		if s.most != nil && within && (most == nil || *s.most < *most) {
			most, p.InForce.Max = s.most, by
		}
		if s.least != nil && !within && lead > 0 {
			start, end, ok := s.window(now.Add(lead))
			if within = ok && now.Before(end) && end.After(start); within {
				by.Text += fmt.Sprintf(" (from %s on)", Clock(start))
			}
		}
		if within {
			active = append(active, s.Name)
		}
		if s.least != nil && within && (least == nil || *s.least > *least) {
			least, p.InForce.Min = s.least, by
		}
	}
	if least != nil {
		p.Min = *least
	}
	if most != nil {
		p.Max = *most
	}
	switch {
	case p.Min <= p.Max:
	case least != nil:
		p.Max, p.InForce.Max = p.Min, p.InForce.Min
	default:
		p.Min, p.InForce.Min = p.Max, p.InForce.Max
	}
	return active
}

// MostReplicas is the highest maximum at any time: that of the spec, or a schedule's above it. No minimum is higher.
func (c *Compiled) MostReplicas() int32 {
	n := c.Policy.Max
	for i := range c.Schedules {
		if most := c.Schedules[i].most; most != nil {
			n = max(n, *most)
		}
	}
	return n
}

// leadOf is how long before a window replicas have to be created to serve when it starts.
func leadOf(p *scale.Policy) time.Duration {
	if p.Startup <= 0 {
		return scale.DefaultStartup
	}
	return p.Startup
}

// compileSchedules translates spec.schedules.
func compileSchedules(spec *v1alpha1.GPUAutoscalerSpec, path *field.Path) (out []Schedule, errs field.ErrorList) {
	if n := len(spec.Schedules); n > maxSchedules {
		return nil, field.ErrorList{field.TooMany(path, n, maxSchedules)}
	}
	names := map[string]bool{}
	for i := range spec.Schedules {
		in, at := &spec.Schedules[i], path.Index(i)
		s, bad := compileSchedule(in, at)
		if names[s.Name] {
			bad = append(bad, field.Duplicate(at.Child("name"), in.Name))
		}
		names[s.Name] = true
		if least := in.MinReplicas; least != nil {
			switch {
			case in.MaxReplicas == nil && *least > spec.MaxReplicas:
				bad = append(bad, field.Invalid(at.Child("minReplicas"), *least, fmt.Sprintf("must not be greater than maxReplicas of the spec (%d); give the schedule a maxReplicas", spec.MaxReplicas)))
			case *least == 0 && (in.MaxReplicas == nil || *in.MaxReplicas > 0) && !wakes(spec.Signals):
				bad = append(bad, field.Invalid(at.Child("minReplicas"), *least, needsWaking))
			}
		}
		out, errs = append(out, s), append(errs, bad...)
	}
	return out, errs
}

func compileSchedule(in *v1alpha1.Schedule, path *field.Path) (s Schedule, errs field.ErrorList) {
	s = Schedule{Name: in.Name, least: in.MinReplicas, most: in.MaxReplicas}
	if in.Name == "" || len(in.Name) > maxName {
		errs = append(errs, field.Invalid(path.Child("name"), in.Name, "needs 1 to 63 characters"))
	}
	zone := in.TimeZone
	if zone == "" {
		zone = "UTC"
	}
	var err error
	if s.zone, err = time.LoadLocation(zone); err != nil || len(zone) > maxTimeZone || zone == "Local" {
		s.zone = time.UTC
		errs = append(errs, field.Invalid(path.Child("timezone"), in.TimeZone, "is not a time zone of the IANA database, such as Europe/Berlin"))
	}
	errs = append(errs, s.compileTimes(in, path)...)
	for name, n := range map[string]*int32{"minReplicas": s.least, "maxReplicas": s.most} {
		if n != nil && *n < 0 {
			errs = append(errs, field.Invalid(path.Child(name), *n, "must not be negative"))
		}
	}
	switch {
	case s.least == nil && s.most == nil:
		errs = append(errs, field.Required(path, "a schedule needs minReplicas, maxReplicas or both"))
	case s.least != nil && s.most != nil && *s.least > *s.most:
		errs = append(errs, field.Invalid(path.Child("minReplicas"), *s.least, fmt.Sprintf("must not be greater than maxReplicas (%d)", *s.most)))
	}
	switch l := in.LeadTime; {
	case l == nil || l.Type == intstr.String && l.StrVal == "Auto":
		s.lead = autoLead
	case l.Type == intstr.Int && l.IntVal >= 0 && seconds(l.IntVal) <= maxLead:
		s.lead = seconds(l.IntVal)
	default:
		errs = append(errs, field.Invalid(path.Child("leadTime"), l.String(), "must be Auto or a number of seconds up to 86400"))
	}
	return s, errs
}

// compileTimes translates the times of a schedule: start and end, or cron and duration.
func (s *Schedule) compileTimes(in *v1alpha1.Schedule, path *field.Path) (errs field.ErrorList) {
	if byClock := in.Start != "" || in.End != ""; byClock == (in.Cron != "" || in.Duration != nil) {
		return field.ErrorList{field.Required(path, "a schedule needs start and end, or cron and duration")}
	}
	if in.Cron != "" || in.Duration != nil {
		c, err := parseCron(in.Cron)
		if err != nil {
			errs = append(errs, field.Invalid(path.Child("cron"), in.Cron, err.Error()))
		}
		if s.cron = &c; in.Duration != nil {
			s.length = in.Duration.Duration
		}
		if s.length < time.Minute || s.length > longestWindow {
			errs = append(errs, field.Invalid(path.Child("duration"), s.length.String(), "must lie between 1m and 168h, which is 7 days"))
		}
		if len(in.Days) > 0 {
			errs = append(errs, field.Forbidden(path.Child("days"), "belong to start and end"))
		}
		return errs
	}
	for name, of := range map[string]struct {
		text string
		into *time.Duration
	}{"start": {in.Start, &s.start}, "end": {in.End, &s.end}} {
		t, err := time.Parse("15:04", of.text)
		if err != nil || len(of.text) != len("15:04") {
			errs = append(errs, field.Invalid(path.Child(name), of.text, `want hours and minutes, such as "08:30"`))
			continue
		}
		*of.into = time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute
	}
	for i, d := range in.Days {
		n, ok := weekdays[d]
		if !ok {
			errs = append(errs, field.NotSupported(path.Child("days").Index(i), d, weekdayValues))
			continue
		}
		s.days[n] = true
	}
	if len(in.Days) == 0 {
		s.days = [7]bool{true, true, true, true, true, true, true}
	}
	return errs
}

var (
	weekdayValues = []v1alpha1.Weekday{"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"}
	weekdays      = map[v1alpha1.Weekday]time.Weekday{"Sun": 0, "Mon": 1, "Tue": 2, "Wed": 3, "Thu": 4, "Fri": 5, "Sat": 6}
)

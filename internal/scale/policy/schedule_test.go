// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// rule is a schedule in the calculator's terms.
type rule struct {
	yaml      string                 // without its zone
	starts    func(w time.Time) bool // whether a window starts at this minute on the clock
	ends      func(w time.Time) time.Time
	length    time.Duration // instead of ends
	low, high int32         // -1: none
	lead      time.Duration
}

func on(w time.Time, hour, minute int) bool { return w.Hour() == hour && w.Minute() == minute }

func workday(w time.Time) bool { return w.Weekday() != time.Saturday && w.Weekday() != time.Sunday }

func at(w time.Time, days, hour, minute int) time.Time {
	return time.Date(w.Year(), w.Month(), w.Day()+days, hour, minute, 0, 0, time.UTC)
}

var rules = []rule{
	{
		`start: "08:00", end: "18:30", days: [Mon, Tue, Wed, Thu, Fri], minReplicas: 6, leadTime: 0`,
		func(w time.Time) bool { return on(w, 8, 0) && workday(w) }, func(w time.Time) time.Time { return at(w, 0, 18, 30) }, 0, 6, -1, 0,
	},
	{
		`start: "22:00", end: "06:00", maxReplicas: 3`,
		func(w time.Time) bool { return on(w, 22, 0) }, func(w time.Time) time.Time { return at(w, 1, 6, 0) }, 0, -1, 3, 0,
	},
	{`start: "01:30", end: "02:30", minReplicas: 5`, // Auto: the start-up of four minutes
		func(w time.Time) bool { return on(w, 1, 30) }, func(w time.Time) time.Time { return at(w, 0, 2, 30) }, 0, 5, -1, 4 * time.Minute},
	{
		`start: "00:15", end: "00:45", minReplicas: 4, maxReplicas: 7, leadTime: 600`,
		func(w time.Time) bool { return on(w, 0, 15) }, func(w time.Time) time.Time { return at(w, 0, 0, 45) }, 0, 4, 7, 10 * time.Minute,
	},
	{
		`start: "02:00", end: "02:00", days: [Sun, Sat], maxReplicas: 6`,
		func(w time.Time) bool { return on(w, 2, 0) && !workday(w) }, func(w time.Time) time.Time { return at(w, 1, 2, 0) }, 0, -1, 6, 0,
	},
	{
		`cron: "*/20 1-3 * * *", duration: 7m, minReplicas: 7, leadTime: 120`,
		func(w time.Time) bool { return w.Minute()%20 == 0 && w.Hour() >= 1 && w.Hour() <= 3 }, nil, 7 * time.Minute, 7, -1, 2 * time.Minute,
	},
	{
		`cron: "45 23 * * SAT,SUN", duration: 5h, maxReplicas: 2`,
		func(w time.Time) bool { return on(w, 23, 45) && !workday(w) }, nil, 5 * time.Hour, -1, 2, 0,
	},
}

// calculator computes the bounds of every minute by walking through the minutes: a window
// starts in the first minute in which the clock of the zone shows its start or a later time.
type calculator struct {
	from  time.Time
	walls []time.Time // what the clock shows, by minute
}

func newCalculator(from, to time.Time, zone *time.Location) *calculator {
	c := &calculator{from: from}
	for t := from; t.Before(to); t = t.Add(time.Minute) {
		l := t.In(zone)
		c.walls = append(c.walls, time.Date(l.Year(), l.Month(), l.Day(), l.Hour(), l.Minute(), 0, 0, time.UTC))
	}
	return c
}

// first returns the first minute in which the clock shows w or later.
func (c *calculator) first(w time.Time) int {
	return slices.IndexFunc(c.walls, func(x time.Time) bool { return !x.Before(w) })
}

// active returns the minutes of the windows, with how much earlier they begin.
func (c *calculator) active(r *rule, lead time.Duration) []bool {
	out := make([]bool, len(c.walls))
	for w := c.walls[0].Add(time.Hour); w.Before(c.walls[len(c.walls)-1].Add(-time.Hour)); w = w.Add(time.Minute) {
		if !r.starts(w) {
			continue
		}
		start := c.first(w)
		end := start + int(r.length/time.Minute)
		if r.ends != nil {
			if end = c.first(r.ends(w)); end < 0 {
				end = len(out)
			}
		}
		if end > start {
			start -= int(lead / time.Minute)
		}
		for i := max(0, start); i < min(end, len(out)); i++ {
			out[i] = true
		}
	}
	return out
}

// Both changes to and from daylight saving time in six zones, minute by minute. The zones
// change at 1:00 to 3:45, at midnight, and by half an hour.
func TestSchedulesOverClockChanges(t *testing.T) {
	for _, zone := range []string{"Europe/Berlin", "America/New_York", "America/Santiago", "Australia/Lord_Howe", "Pacific/Chatham", "Africa/Cairo"} {
		t.Run(strings.ReplaceAll(zone, "/", "-"), func(t *testing.T) {
			loc, err := time.LoadLocation(zone)
			if err != nil {
				t.Fatal(err)
			}
			changes := 0
			for h := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC); h.Year() == 2026; h = h.Add(time.Hour) {
				_, before := h.In(loc).Zone()
				if _, after := h.Add(time.Hour).In(loc).Zone(); before != after {
					changes++
					compareSchedules(t, zone, loc, h)
				}
			}
			if changes != 2 {
				t.Errorf("%d changes of the clock, want 2", changes)
			}
		})
	}
}

func compareSchedules(t *testing.T, zone string, loc *time.Location, change time.Time) {
	t.Helper()
	var list []string
	for i, r := range rules {
		list = append(list, fmt.Sprintf("{name: s%d, timezone: %s, %s}", i, zone, r.yaml))
	}
	c, err := Compile(autoscaler(t, minimal+"minReplicas: 2\nstartup: {expectedSeconds: 240}\nschedules: ["+strings.Join(list, ", ")+"]"))
	if err != nil {
		t.Fatal(err)
	}
	from, to := change.Add(-24*time.Hour), change.Add(24*time.Hour)
	calc := newCalculator(from.Add(-72*time.Hour), to.Add(72*time.Hour), loc)
	var lows, highs [][]bool
	for i := range rules {
		lows, highs = append(lows, calc.active(&rules[i], rules[i].lead)), append(highs, calc.active(&rules[i], 0))
	}
	n := 0
	for i, now := 0, calc.from; now.Before(to); i, now = i+1, now.Add(time.Minute) {
		if now.Before(from) {
			continue
		}
		low, high := int32(-1), int32(99)
		for k := range rules {
			if r := &rules[k]; r.low >= 0 && lows[k][i] {
				low = max(low, r.low)
			}
			if r := &rules[k]; r.high >= 0 && highs[k][i] {
				high = min(high, r.high)
			}
		}
		if high == 99 {
			high = 8
		}
		if low < 0 {
			low = min(2, high)
		}
		high = max(low, high)
		for _, second := range []time.Duration{0, 59*time.Second + 999*time.Millisecond} {
			p := c.Policy
			c.Apply(&p, now.Add(second), time.Time{})
			if p.Min != low || p.Max != high {
				t.Fatalf("at %v (%v): %d to %d, want %d to %d", now.Add(second), now.In(loc), p.Min, p.Max, low, high)
			}
		}
		n++
	}
	if n != 48*60 {
		t.Errorf("%d minutes", n)
	}
}

// A skipped hour starts at the next minute, a doubled one once; by hand.
func TestScheduleOnChangeOfClock(t *testing.T) {
	f := func(zone, schedule, from, to string) {
		t.Helper()
		c, err := Compile(autoscaler(t, minimal+"schedules: [{name: a, minReplicas: 5, leadTime: 0, timezone: "+zone+", "+schedule+"}]"))
		if err != nil {
			t.Fatal(err)
		}
		day, err := time.Parse("2006-01-02", from[:10])
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		was := int32(1)
		for now := day.Add(-12 * time.Hour); now.Before(day.Add(36 * time.Hour)); now = now.Add(time.Minute) {
			p := c.Policy
			c.Apply(&p, now, time.Time{})
			if p.Min != was && len(got) < 2 && !now.Before(day) {
				got = append(got, now.Format("2006-01-02 15:04"))
			}
			was = p.Min
		}
		if !slices.Equal(got, []string{from, to}) {
			t.Errorf("%s %s: %v, want %s to %s", zone, schedule, got, from, to)
		}
	}
	f("Europe/Berlin", `start: "08:00", end: "09:00"`, "2026-03-28 07:00", "2026-03-28 08:00")
	f("Europe/Berlin", `start: "08:00", end: "09:00"`, "2026-03-29 06:00", "2026-03-29 07:00")
	f("Europe/Berlin", `start: "02:30", end: "03:30", days: [Sun]`, "2026-03-29 01:00", "2026-03-29 01:30")
	f("Europe/Berlin", `start: "02:30", end: "03:30", days: [Sun]`, "2026-10-25 00:30", "2026-10-25 02:30")
	f("Europe/Berlin", `cron: "30 2 * * 0", duration: 30m`, "2026-10-25 00:30", "2026-10-25 01:00")
	f("America/New_York", `cron: "30 2 8 3 *", duration: 30m`, "2026-03-08 07:00", "2026-03-08 07:30")
}

// A higher minimum and a lower maximum win, and a minimum wins over a maximum.
func TestSchedulesTogether(t *testing.T) {
	noon := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC) // a Tuesday
	f := func(list string, now time.Time, low, high int32, active string) {
		t.Helper()
		c, err := Compile(autoscaler(t, minimal+"minReplicas: 2\nschedules: ["+list+"]"))
		if err != nil {
			t.Fatal(err)
		}
		p := c.Policy
		if got := strings.Join(c.Apply(&p, now, time.Time{}), " "); p.Min != low || p.Max != high || got != active {
			t.Errorf("%s at %v: %d to %d by %q, want %d to %d by %q", list, now, p.Min, p.Max, got, low, high, active)
		}
	}
	const day = `{name: day, start: "08:00", end: "18:00", minReplicas: 6}`
	const night = `{name: night, start: "18:00", end: "08:00", maxReplicas: 3}`
	const off = `{name: closed, start: "18:00", end: "08:00", maxReplicas: 0}`
	const lunch = `{name: lunch, cron: "30 11 * * MON-FRI", duration: 90m, minReplicas: 4, maxReplicas: 5}`
	f(day+","+night, noon, 6, 8, "day")
	f(day+","+night, noon.Add(10*time.Hour), 2, 3, "night")
	f(day+","+night, noon.Add(20*time.Hour-scale.DefaultStartup-time.Second), 2, 3, "night")
	f(day+","+night, noon.Add(20*time.Hour-scale.DefaultStartup), 6, 6, "day night") // they serve at 08:00
	f(day+","+lunch, noon, 6, 6, "day lunch")
	f(lunch, noon, 4, 5, "lunch")
	f(lunch, noon.Add(time.Hour), 2, 8, "")
	f(off, noon.Add(10*time.Hour), 0, 0, "closed")
	f(`{name: all, start: "08:00", end: "08:00", minReplicas: 3}`, noon.Add(17*time.Hour), 3, 8, "all")
	f(`{name: big, start: "08:00", end: "18:00", minReplicas: 20, maxReplicas: 30}`, noon, 20, 30, "big")
}

func TestBadSchedules(t *testing.T) {
	f := func(schedule string, want ...string) {
		t.Helper()
		_, err := Compile(autoscaler(t, minimal+"schedules: [{"+schedule+"}]"))
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: error %v, want it to say %q", schedule, err, w)
			}
		}
	}
	const times = `, start: "08:00", end: "09:00"`
	f("name: a, minReplicas: 2", "spec.schedules[0]", "start and end, or cron and duration")
	f("name: a, minReplicas: 2, cron: 0 8 * * *"+times, "start and end, or cron and duration")
	f("name: a"+times, "needs minReplicas, maxReplicas or both")
	f("minReplicas: 2"+times, "schedules[0].name")
	f(`name: a, minReplicas: 2, start: "8:00", end: "25:00"`, "schedules[0].start", "schedules[0].end")
	f(`name: a, minReplicas: 2, start: "08:00"`, "schedules[0].end")
	f("name: a, minReplicas: 2, days: [Mo]"+times, "schedules[0].days[0]", "Mon")
	f("name: a, minReplicas: 2, cron: 0 8 * * *", "schedules[0].duration")
	f("name: a, minReplicas: 2, duration: 1h", "schedules[0].cron")
	f("name: a, minReplicas: 2, duration: 200h, cron: 0 8 * * *", "between 1m and 168h")
	f("name: a, minReplicas: 2, duration: 1h, days: [Mon], cron: 0 8 * * *", "days", "belong to start and end")
	f("name: a, minReplicas: 2, timezone: Europe/Bonn"+times, "schedules[0].timezone", "Europe/Berlin")
	f("name: a, minReplicas: 2, timezone: Local"+times, "schedules[0].timezone")
	f("name: a, minReplicas: 2, timezone: ../../etc/localtime"+times, "schedules[0].timezone")
	f("name: a, minReplicas: -1"+times, "must not be negative")
	f("name: a, minReplicas: 9"+times, "greater than maxReplicas of the spec (8)")
	f("name: a, minReplicas: 4, maxReplicas: 3"+times, "greater than maxReplicas (3)")
	f("name: a, minReplicas: 0"+times, "a query with an activation")
	f("name: a, minReplicas: 2, leadTime: Soon"+times, "schedules[0].leadTime")
	f("name: a, minReplicas: 2, leadTime: 86401"+times, "schedules[0].leadTime")
	f("name: a, minReplicas: 2"+times+"}, {name: a, minReplicas: 3"+times, "schedules[1].name", "Duplicate")
}

func TestParseCron(t *testing.T) {
	wall := func(s string) time.Time {
		w, err := time.Parse("2006-01-02 15:04", s)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	f := func(text, now, want string) {
		t.Helper()
		c, err := parseCron(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			return
		}
		got := ""
		if w, ok := c.before(wall(now), longestWindow); ok {
			got = w.Format("2006-01-02 15:04")
		}
		if got != want {
			t.Errorf("%s before %s: %s, want %s", text, now, got, want)
		}
	}
	f("0 8 * * *", "2026-11-24 08:00", "2026-11-24 08:00")
	f("0 8 * * *", "2026-11-24 07:59", "2026-11-23 08:00")
	f("*/15 * * * *", "2026-11-24 07:59", "2026-11-24 07:45")
	f("10/25 9-17 * * 1-5", "2026-11-22 12:00", "2026-11-20 17:35")
	f("0 0 1 jan *", "2026-01-03 00:00", "2026-01-01 00:00")
	f("0 0 1 1 *", "2026-11-24 00:00", "") // too long ago
	f("0 0 13 * FRI", "2026-11-24 00:00", "2026-11-20 00:00")
	f("0 0 */2 * 7", "2026-11-30 00:00", "2026-11-29 00:00") // both: a step of * does not limit the day
	f("59 23 31 12 *", "2027-01-02 00:00", "2026-12-31 23:59")
	bad := func(text, want string) {
		t.Helper()
		if _, err := parseCron(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	bad("", "five fields")
	bad("@daily", "five fields")
	bad("TZ=UTC 0 8 * * *", "five fields")
	bad("60 * * * *", `minute: "60" is not a number from 0 to 59`)
	bad("* * 0 * *", "day of the month")
	bad("* * * FOO *", "month")
	bad("* * * * 8", "day of the week")
	bad("5-1 * * * *", "ends before it starts")
	bad("*/0 * * * *", "minute")
	bad("1,,2 * * * *", "minute")
	bad("+5 * * * *", "minute")
}

// FuzzCron: what is parsed finds only minutes that match it, the last one, at no cost.
func FuzzCron(f *testing.F) {
	for _, text := range []string{"0 8 * * *", "*/7 1-3,5 1,31 JAN-MAR SUN", "59 23 29 2 7", "* * * * *"} {
		f.Add(text, int64(1_800_000_000))
	}
	f.Fuzz(func(t *testing.T, text string, unix int64) {
		c, err := parseCron(text)
		if err != nil {
			return
		}
		now := time.Unix(unix%(1<<34), 0).UTC().Truncate(time.Minute)
		matches := func(w time.Time) bool {
			return c.minutes&(1<<w.Minute()) != 0 && c.hours&(1<<w.Hour()) != 0 && c.matchesDay(w)
		}
		got, ok := c.before(now, time.Hour)
		if ok && (!matches(got) || got.After(now)) {
			t.Fatalf("%q before %v: %v", text, now, got)
		}
		for w := now; w.After(now.Add(-time.Hour)); w = w.Add(-time.Minute) {
			if matches(w) {
				if !ok || !got.Equal(w) {
					t.Fatalf("%q before %v: %v, want %v", text, now, got, w)
				}
				return
			}
		}
	})
}

// FuzzSchedule: whatever is compiled gives bounds that fit one another.
func FuzzSchedule(f *testing.F) {
	f.Add("Europe/Berlin", "08:00", "18:00", "", int64(1_800_000_000), int32(3), int32(5))
	f.Add("Asia/Kathmandu", "", "", "*/5 * * * *", int64(1_780_000_000), int32(0), int32(0))
	f.Add("Pacific/Apia", "23:59", "00:00", "", int64(1_325_250_000), int32(1), int32(1))
	f.Fuzz(func(t *testing.T, zone, start, end, cron string, unix int64, low, high int32) {
		in := v1alpha1.Schedule{Name: "a", TimeZone: zone, Start: start, End: end, Cron: cron, MinReplicas: &low, MaxReplicas: &high}
		a := autoscaler(t, minimal)
		if cron != "" {
			in.Duration = &metav1.Duration{Duration: time.Hour}
		}
		a.Spec.Schedules = []v1alpha1.Schedule{in}
		c, err := Compile(a)
		if err != nil {
			return
		}
		now := time.Unix(unix%(1<<34), 0)
		p := c.Policy
		active := c.Apply(&p, now, time.Time{})
		if p.Min < 0 || p.Min > p.Max || len(active) == 0 && (p.Min != 1 || p.Max != 8) {
			t.Fatalf("%d to %d by %v", p.Min, p.Max, active)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// cronTrigger translates windows with at least a number of replicas. In KEDA a window is active while the next end comes
// before the next start: from the last start before an end to the last end before a start.
func (c *converter) cronTrigger(t *trigger, field string) {
	md, spec := t.Metadata, &c.result.Object.Spec
	lose := func(format string, args ...any) {
		c.result.lose(field, "a schedule with start %q, end %q, desiredReplicas %q and timezone %q: %s", md["start"], md["end"], md["desiredReplicas"], md["timezone"], fmt.Sprintf(format, args...))
	}
	replicas, err := strconv.ParseInt(md["desiredReplicas"], 10, 32)
	if err != nil || replicas < 0 {
		lose("desiredReplicas is not a number of replicas")
		return
	}
	windows, err := windowsOf(md["start"], md["end"])
	if err != nil {
		lose("%v", err)
		return
	}
	n := int32(min(replicas, int64(spec.MaxReplicas)))
	if int64(n) < replicas {
		c.result.note(field+".metadata.desiredReplicas", "%d: maxReplicas is %d", replicas, n)
	}
	var names []string
	for _, w := range windows {
		name := c.scheduleName(t)
		names = append(names, fmt.Sprintf("%s (%q for %v)", name, w.cron, w.duration))
		spec.Schedules = append(spec.Schedules, v1alpha1.Schedule{
			Name: name, TimeZone: md["timezone"], Cron: w.cron, Duration: &metav1.Duration{Duration: w.duration}, MinReplicas: new(n),
		})
		c.scheduleFields = append(c.scheduleFields, field)
	}
	of := ""
	if t.Name != "" && t.Name != names[0] {
		of = " of " + t.Name
	}
	c.result.note(field, "from %q to %q, the schedule %s%s: at least %d replicas, which serve at the start (leadTime: Auto), where KEDA begins to start them then", md["start"], md["end"], strings.Join(names, ", "), of, n)
}

// scheduleName is a name that no schedule has.
func (c *converter) scheduleName(t *trigger) string {
	spec := &c.result.Object.Spec
	first := cmp.Or(signalName(t.Name), fmt.Sprintf("cron-%d", len(spec.Schedules)+1))
	name := first
	for i := 2; slices.ContainsFunc(spec.Schedules, func(s v1alpha1.Schedule) bool { return s.Name == name }); i++ {
		name = fmt.Sprintf("%.58s-%d", first, i)
	}
	return name
}

// cronWindow is a window of time that recurs.
type cronWindow struct {
	cron     string
	duration time.Duration
}

const minutesOfWeek = 7 * 24 * 60

// windowsOf returns the windows between the starts and the ends of two cron expressions. Those
// of the days of a month have windows where a start and an end are on the same days.
func windowsOf(start, end string) ([]cronWindow, error) {
	from, err := parseCron(start)
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	to, err := parseCron(end)
	if err != nil {
		return nil, fmt.Errorf("end: %w", err)
	}
	if !from.weekly() || !to.weekly() {
		return monthly(from, to)
	}
	starts, ends := from.minutes(), to.minutes()
	byLength := map[[3]int][]int{} // the weekdays, by hour, minute and length
	for at := range minutesOfWeek {
		switch {
		case starts[at] && ends[at]:
			return nil, fmt.Errorf("a start and an end are at the same minute, and KEDA's result then depends on the second")
		case !starts[at]:
			continue
		}
		length := 0 // to the last end before the next start
		for i := 1; i <= minutesOfWeek && (i == minutesOfWeek || !starts[(at+i)%minutesOfWeek]); i++ {
			if ends[(at+i)%minutesOfWeek] {
				length = i
			}
		}
		if length == 0 {
			continue // the next start comes before an end: KEDA waits for that one
		}
		key := [3]int{at / 60 % 24, at % 60, length}
		byLength[key] = append(byLength[key], at/(24*60))
	}
	var out []cronWindow
	for _, key := range slices.SortedFunc(maps.Keys(byLength), func(a, b [3]int) int { return slices.Compare(a[:], b[:]) }) {
		days := "*"
		if d := byLength[key]; len(d) < 7 {
			days = ranges(d)
		}
		out = append(out, cronWindow{fmt.Sprintf("%d %d * * %s", key[1], key[0], days), time.Duration(key[2]) * time.Minute})
	}
	switch {
	case len(out) == 0:
		return nil, fmt.Errorf("no start is followed by an end")
	case len(out) > maxSchedules:
		return nil, fmt.Errorf("%d different windows a week, and an object has at most %d schedules", len(out), maxSchedules)
	}
	return out, nil
}

// monthly is windowsOf for days of the month: one start and one later end on the same days.
func monthly(from, to cronFields) ([]cronWindow, error) {
	one := func(c cronFields) (int, bool) {
		return 60*slices.Index(c.sets[1], true) + slices.Index(c.sets[0], true), count(c.sets[0]) == 1 && count(c.sets[1]) == 1
	}
	first, ok1 := one(from)
	last, ok2 := one(to)
	if !ok1 || !ok2 || last <= first || !slices.Equal(from.text[2:], to.text[2:]) {
		return nil, fmt.Errorf("on days of the month or in months, only one start and one later end of the same days have an equivalent")
	}
	return []cronWindow{{strings.Join(from.text, " "), time.Duration(last-first) * time.Minute}}, nil
}

// ranges lists days of the week as a cron expression does.
func ranges(days []int) string {
	var out []string
	for i := 0; i < len(days); {
		j := i
		for j+1 < len(days) && days[j+1] == days[j]+1 {
			j++
		}
		switch {
		case j == i:
			out = append(out, strconv.Itoa(days[i]))
		default:
			out = append(out, fmt.Sprintf("%d-%d", days[i], days[j]))
		}
		i = j + 1
	}
	return strings.Join(out, ",")
}

// cronFields is a cron expression: its fields as written, and the values that they allow.
type cronFields struct {
	text []string
	sets [5][]bool
}

// weekly reports whether each week is like the others.
func (c *cronFields) weekly() bool { return all(c.sets[2][1:]) && all(c.sets[3][1:]) }

// minutes are the minutes of a week, from Sunday on.
func (c *cronFields) minutes() []bool {
	out := make([]bool, minutesOfWeek)
	for i := range out {
		out[i] = c.sets[0][i%60] && c.sets[1][i/60%24] && c.sets[4][i/(24*60)]
	}
	return out
}

func all(set []bool) bool { return !slices.Contains(set, false) }

func count(set []bool) (n int) {
	for _, is := range set {
		if is {
			n++
		}
	}
	return n
}

// parseCron parses the five fields of KEDA's cron expressions.
func parseCron(text string) (c cronFields, err error) {
	if c.text = strings.Fields(text); len(c.text) != 5 || len(text) > 100 {
		return c, fmt.Errorf("%q has not the five fields minute, hour, day of the month, month and day of the week", text)
	}
	for i, f := range []struct {
		low, high int
		names     []string
	}{
		{0, 59, nil},
		{0, 23, nil},
		{1, 31, nil},
		{1, 12, []string{"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"}},
		{0, 7, []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}},
	} {
		if c.text[i] == "?" {
			c.text[i] = "*"
		}
		if c.sets[i], err = parseCronField(c.text[i], f.low, f.high, f.names); err != nil {
			return c, fmt.Errorf("%q: %w", text, err)
		}
	}
	week := c.sets[4]
	week[0] = week[0] || week[7] // 7 is Sunday, too
	c.sets[4] = week[:7]
	return c, nil
}

func parseCronField(field string, low, high int, names []string) ([]bool, error) {
	number := func(text string, least int) (int, error) {
		if i := slices.IndexFunc(names, func(n string) bool { return strings.EqualFold(n, text) }); i >= 0 {
			return i + low, nil
		}
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || int(n) < least || int(n) > high {
			return 0, fmt.Errorf("%q is not a number from %d to %d", text, least, high)
		}
		return int(n), nil
	}
	set := make([]bool, high+1)
	for _, part := range strings.Split(field, ",") {
		span, stepText, hasStep := strings.Cut(part, "/")
		first, last, step := low, high, 1
		var err error
		if span != "*" {
			from, to, isRange := strings.Cut(span, "-")
			if first, err = number(from, low); err != nil {
				return nil, err
			}
			if !hasStep {
				last = first
			}
			if isRange {
				if last, err = number(to, low); err != nil {
					return nil, err
				}
			}
			if last < first {
				return nil, fmt.Errorf("%q ends before it starts", span)
			}
		}
		if hasStep {
			if step, err = number(stepText, 1); err != nil {
				return nil, err
			}
		}
		for n := first; n <= last; n += step {
			set[n] = true
		}
	}
	return set, nil
}

// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/whatif"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// Record is what a controller recorded of a workload around a time.
type Record struct {
	Namespace, Name string
	Object          []byte          // the GPUAutoscaler as YAML
	Policy          policy.Compiled // of the object
	Startup         time.Duration   // 0: unknown
	From, To        time.Time

	step  time.Duration // between two moments
	steps []recordedStep
}

// recordedStep is a workload in one step of the record. Numbers of replicas are means of the step.
type recordedStep struct {
	at                               time.Time
	decided, serving                 float64
	starting, unschedulable, current *float64   // nil: not recorded
	signals                          []*float64 // as in the inputs of a decision; nil: no value
}

// Read reads the steps from the controller: seconds, if these go back far enough, else minutes. get decodes what is at a path
// of its API.
func (r *Record) Read(now time.Time, get func(path string, query url.Values, into any) error) error {
	var seconds view.History
	object := url.Values{"namespace": {r.Namespace}, "name": {r.Name}}
	if err := get("api/v1/history", object, &seconds); err != nil {
		return err
	}
	if r.addSeconds(seconds.Points); len(r.steps) > 0 {
		return nil
	}
	query := url.Values{"namespace": {r.Namespace}, "name": {r.Name}, "step": {"1m"}, "since": {min(now.Sub(r.From)+time.Minute, history.Retention).Truncate(time.Second).String()}}
	for _, state := range []string{"current", "desired", "serving", "starting", "unschedulable"} {
		query.Add("metric", string(history.NewMetric(view.ReplicasMetric, "state", state)))
	}
	for i := range r.Policy.Policy.Signals {
		query.Add("metric", string(history.NewMetric(view.SignalMetric, "signal", excerpt.Of(r.Policy.Policy.Signals[i].Name, history.MaxSignal))))
	}
	var minutes view.Minutes
	if err := get("api/v1/minutes", query, &minutes); err != nil {
		return err
	}
	if r.addMinutes(&minutes); len(r.steps) == 0 {
		return fmt.Errorf("the controller has recorded nothing of %s/%s from %s to %s", r.Namespace, r.Name, r.From.Format(time.DateTime), r.To.Format(time.DateTime))
	}
	return nil
}

// addSeconds adds the points if they go back to From. An older controller has no current and no starting replicas in them: what
// was decided before and does not serve counts as starting.
func (r *Record) addSeconds(points []view.Point) {
	if len(points) == 0 || points[0].Time.Truncate(time.Second).After(r.From) {
		return
	}
	r.step = time.Second
	for i := range points {
		p := &points[i]
		at := p.Time.Truncate(time.Second)
		if at.Before(r.From) || at.After(r.To) {
			continue
		}
		current, starting := p.Current, p.Starting
		if current == 0 && p.Replicas > 0 && i > 0 {
			current = points[i-1].Replicas
			starting = max(0, current-p.Serving)
		}
		s := recordedStep{at: at, decided: float64(p.Replicas), serving: float64(p.Serving), signals: p.Signals}
		before, on := float64(current), float64(starting)
		s.current, s.starting = &before, &on
		r.steps = append(r.steps, s)
	}
}

// addMinutes adds the minutes that have a number of serving replicas.
func (r *Record) addMinutes(m *view.Minutes) {
	r.step = cmp.Or(m.Step, time.Minute)
	value := func(i int, metric string, labels ...string) *float64 {
		if x := m.Named(i, metric, labels...); x != nil {
			return &x.Mean[i]
		}
		return nil
	}
	for i := range m.Steps() {
		at := m.First.Add(time.Duration(i) * r.step)
		serving, decided := value(i, view.ReplicasMetric, "state", "serving"), value(i, view.ReplicasMetric, "state", "desired")
		if at.Before(r.From.Truncate(r.step)) || at.After(r.To) || serving == nil || decided == nil {
			continue
		}
		s := recordedStep{
			at: at, decided: *decided, serving: *serving, signals: make([]*float64, len(r.Policy.Policy.Signals)),
			starting: value(i, view.ReplicasMetric, "state", "starting"), unschedulable: value(i, view.ReplicasMetric, "state", "unschedulable"),
			current: value(i, view.ReplicasMetric, "state", "current"),
		}
		for k := range s.signals {
			s.signals[k] = value(i, view.SignalMetric, "signal", excerpt.Of(r.Policy.Policy.Signals[k].Name, history.MaxSignal))
		}
		r.steps = append(r.steps, s)
	}
}

// whole rounds a number of replicas; nil is 0.
func whole(v *float64) int {
	if v == nil {
		return 0
	}
	return int(math.Round(*v))
}

// words are the fields of a step in the timeline.
func (r *Record) words(s *recordedStep) string {
	var pods, totals []string
	hasTotals := false
	for i := range r.Policy.Policy.Signals {
		sig := &r.Policy.Policy.Signals[i]
		pod, total := "-", "-"
		if i < len(s.signals) && s.signals[i] != nil {
			v := *s.signals[i]
			if r.Policy.Sources[i].Kind == policy.Query {
				total = strconv.FormatFloat(v, 'g', -1, 64)
			} else {
				pod = strconv.FormatFloat(whatif.Reading(sig, v, s.serving), 'g', -1, 64)
			}
		}
		hasTotals = hasTotals || r.Policy.Sources[i].Kind == policy.Query
		pods, totals = append(pods, pod), append(totals, total)
	}
	text := fmt.Sprintf("serving=%d@%s starting=%d", whole(&s.serving), strings.Join(pods, "/"), whole(s.starting))
	if n := whole(s.unschedulable); n > 0 || s.unschedulable != nil {
		text += fmt.Sprintf(" unschedulable=%d", n)
	}
	if hasTotals {
		text += " total=" + strings.Join(totals, "/")
	}
	return text
}

// timeline writes the steps. Its times are the times of the day of the first step, in UTC. While nothing was recorded, values
// are not measured.
func (r *Record) timeline() string {
	first := r.steps[0].at.UTC()
	midnight := first.Truncate(24 * time.Hour)
	var b strings.Builder
	before, last := "", time.Time{}
	for i := range r.steps {
		s := &r.steps[i]
		at := s.at.UTC()
		words := r.words(s)
		switch {
		case i == 0:
			current := whole(s.current)
			fmt.Fprintf(&b, "%v replicas=%d %s", at.Sub(midnight), current, words)
			if r.Startup > 0 {
				fmt.Fprintf(&b, " startup=%v", r.Startup.Round(time.Second))
			}
			b.WriteByte('\n')
		case at.Sub(last) > r.step+r.step/2:
			fmt.Fprintf(&b, "%v frozen   # nothing was recorded until %s\n%v live %s\n", last.Add(r.step).Sub(midnight), at.Format(time.TimeOnly), at.Sub(midnight), words)
		case words != before:
			fmt.Fprintf(&b, "%v %s\n", at.Sub(midnight), words)
		}
		before, last = words, at
	}
	if end := last.Add(r.step - tick); end.After(last) || len(r.steps) > 1 {
		fmt.Fprintf(&b, "%v\n", end.Sub(midnight)+0)
	}
	return b.String()
}

// Export returns the record as a scenario with the decisions that the engine makes now. Its comment says how many
// steps have the number of replicas that was recorded.
func (r *Record) Export() ([]byte, error) {
	if len(r.steps) == 0 {
		return nil, errors.New("nothing was recorded")
	}
	a := txtar.Archive{Comment: []byte("title\n\n"), Files: []txtar.File{
		{Name: policySection, Data: append(r.Object, '\n')}, {Name: timelineSection, Data: []byte(r.timeline() + "\n")},
	}}
	s, err := Parse(r.Name, txtar.Format(&a))
	if err != nil {
		return nil, err
	}
	moments, err := s.Run(nil)
	if err != nil {
		return nil, err
	}
	s.archive.Comment = []byte(r.comment(moments))
	return s.WithDecisions(Decisions(moments)), nil
}

// comment is the title, with what the replay has in common with the record.
func (r *Record) comment(moments []Moment) string {
	first, last := r.steps[0].at.UTC(), r.steps[len(r.steps)-1].at.UTC()
	same, difference := r.compare(moments)
	text := fmt.Sprintf("%s/%s, %s to %s UTC\n\nRecorded by the controller in steps of %v: means over the replicas. Times are those of the day, in UTC.\nThe replay has the recorded number of replicas in %d of %d steps",
		r.Namespace, r.Name, first.Format("2006-01-02 15:04:05"), last.Format(time.TimeOnly), r.step, same, len(r.steps))
	if difference != "" {
		text += "; first difference: " + difference
	}
	return text + ".\n\n"
}

// compare counts the steps in which the replay has the recorded number of replicas, by the mean of a step.
func (r *Record) compare(moments []Moment) (same int, difference string) {
	midnight := r.steps[0].at.UTC().Truncate(24 * time.Hour)
	k := 0
	for i := range r.steps {
		s := &r.steps[i]
		from := s.at.UTC().Sub(midnight)
		sum, n := 0.0, 0.0
		for ; k < len(moments) && moments[k].At < from+r.step; k++ {
			if moments[k].At >= from {
				sum, n = sum+float64(moments[k].Decision.Replicas), n+1
			}
		}
		if n == 0 {
			continue
		}
		if math.Abs(sum/n-s.decided) < 0.5 {
			same++
		} else if difference == "" {
			difference = fmt.Sprintf("%v, %.3g recorded and %.3g replayed", from, s.decided, sum/n)
		}
	}
	return same, difference
}

// ParseAround parses a time in the past: 15:04 or 15:04:05 of today, or of yesterday if that is still to come, 2006-01-02
// 15:04, or RFC 3339. Without an offset it is in now's time zone.
func ParseAround(s string, now time.Time) (time.Time, error) {
	for _, layout := range []string{"15:04", time.TimeOnly} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			t = time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location())
			if t.After(now) {
				t = t.AddDate(0, 0, -1)
			}
			return t, nil
		}
	}
	for _, layout := range []string{"2006-01-02 15:04", time.DateTime, time.RFC3339} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil && !t.After(now) {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%.40q: want a time in the past, such as 14:05, \"2026-01-31 14:05\" or 2026-01-31T14:05:00Z", s)
}

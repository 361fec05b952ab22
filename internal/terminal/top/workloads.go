// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/terminal/termtext"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

func workloadID(w *view.Workload) string { return w.Namespace + "/" + w.Name }

// deciding returns the signal with the highest value for its target; nil: none has a value.
func deciding(w *view.Workload) *view.Signal {
	var best *view.Signal
	ratio := -1.0
	for i := range w.Signals {
		s := &w.Signals[i]
		if s.Value != nil && s.Target > 0 && *s.Value/s.Target > ratio {
			best, ratio = s, *s.Value/s.Target
		}
	}
	return best
}

// replicas are serving + starting / desired / max.
func replicas(w *view.Workload) Cell {
	d := w.Decision
	if d == nil {
		return Cell{}
	}
	s := strconv.Itoa(int(d.Serving))
	if d.Starting > 0 {
		s += "+" + strconv.Itoa(int(d.Starting))
	}
	c := Cell{Text: fmt.Sprintf("%s/%d/%d", s, d.Replicas, w.Max), Value: float64(d.Serving)}
	if d.Unschedulable > 0 || d.Replicas >= w.Max {
		c.Style = Warn
	}
	return c
}

// kept is the worst objective of a workload.
func kept(w *view.Workload) Cell {
	if len(w.Objectives) == 0 {
		return Cell{}
	}
	worst := &w.Objectives[0]
	for i := range w.Objectives {
		if o := &w.Objectives[i]; o.Missed && !worst.Missed || o.Burning && !worst.Burning && !worst.Missed {
			worst = o
		}
	}
	c := text(worst.Attained, Good)
	switch {
	case worst.Missed:
		c.Style = Bad
	case worst.Burning:
		c.Style = Warn
	}
	return c
}

// lastChange returns the newest decision that changed a workload's replicas; nil: none is
// known.
func (f *Fleet) lastChange(w *view.Workload) *view.Event {
	for i := range f.View.Recent { // newest first
		if e := &f.View.Recent[i]; e.Namespace == w.Namespace && e.Name == w.Name {
			return e
		}
	}
	return nil
}

// heldBy says what holds or bounds a workload's replicas beside its signals; empty: nothing. The
// reason of an override is a tenant's text.
func heldBy(w *view.Workload) string {
	var out []string
	for _, x := range [][2]string{{"override: ", w.Override}, {"schedule ", strings.Join(w.Schedules, ", ")}, {"idle: ", w.Idle}} {
		if x[1] != "" {
			out = append(out, x[0]+x[1])
		}
	}
	if w.Rollout {
		out = append(out, "rollout")
	}
	if w.Leaving > 0 {
		out = append(out, fmt.Sprintf("%d draining", w.Leaving))
	}
	return excerpt.Of(strings.Join(out, "; "), maxHeldBy)
}

const maxHeldBy = 300 // bytes

func (f *Fleet) workloads(look *Look) Table {
	t := Table{Sort: "problem", Total: f.TotalWorkloads, Columns: []Column{
		{Key: "workload", Head: "WORKLOAD", Names: true, Least: 12},
		{Key: "kind", Head: "KIND", Wide: true},
		{Key: "serving_replicas", Head: "REPLICAS", Least: 8},
		{Key: "trend", Head: "LAST 60 S", Least: trendPoints, Rank: 2},
		{Key: "kept", Head: "KEPT", Right: true, Least: 5},
		{Key: "last_change_seconds", Head: "CHANGED", Right: true, Rank: 3},
		{Key: "rule", Head: "RULE", Wide: true},
		{Key: "held_by", Head: "HELD BY", Rest: true, Least: 10, Wide: true, Rank: 1},
		{Key: "signal", Head: "SIGNAL AND TARGET", Least: 20, Wide: true},
		{Key: "why", Head: "WHY", Rest: true, Least: 40},
		{Key: "problem", Head: "PROBLEM", Wide: true, Rest: true},
	}, Legend: "REPLICAS: serving + starting / desired / maximum"}
	if look.Trends == nil {
		t.Columns[t.column("trend")].Wide = true
	}
	for i := range f.View.Workloads {
		w := &f.View.Workloads[i]
		held := Cell{Text: "nothing", Value: "", Style: Faint}
		if by := heldBy(w); by != "" {
			held, t.Columns[t.column("held_by")].Wide = text(by, Warn), false
		}
		signal, changed, rule, why := Cell{}, Cell{}, Cell{}, Cell{}
		if s := deciding(w); s != nil {
			signal.Text, signal.Value = termtext.Clean(fmt.Sprintf("%s %.3g ÷ %.3g%s", s.Name, *s.Value, s.Target, unitOf(s.Unit))), *s.Value/s.Target
			if *s.Value > s.Target {
				signal.Style = Warn
			}
		}
		if e := f.lastChange(w); e != nil {
			d := max(0, look.Now.Sub(e.Decision.Time))
			changed = Cell{Text: short(d), Value: d.Seconds()}
		}
		if w.Decision != nil {
			rule, why = text(string(w.Decision.Rule)), text(w.Decision.Reason())
		}
		problem := Cell{Text: "ok", Style: Faint}
		switch {
		case w.Problem != "":
			problem = text(w.Problem, Bad)
			why = problem
		case w.Waiting != "":
			problem = text(w.Waiting, Warn)
			why = problem
		case w.AtLimit != "":
			problem = text(w.AtLimit, Warn)
			why = problem
		case w.Actuation == "Advise":
			problem.Text = "advice only"
		}
		t.Rows = append(t.Rows, Row{
			ID: workloadID(w), Labels: map[string]string{"namespace": w.Namespace, "name": w.Name, "kind": w.Kind, "target": w.Target, "actuation": w.Actuation},
			Cells: []Cell{
				text(workloadID(w)), text(w.Kind), replicas(w), {Text: look.Trends.Spark(workloadID(w), look.ASCII)}, kept(w), changed, rule, held, signal, why, problem,
			},
		})
	}
	return t
}

// unitOf is a unit behind a number.
func unitOf(unit string) string {
	if unit == "" {
		return ""
	}
	return " " + unit
}

// eventID identifies a decision.
func eventID(e *view.Event) string {
	return fmt.Sprintf("%s/%s %d", e.Namespace, e.Name, e.Decision.Time.UnixNano())
}

func (f *Fleet) decisions(look *Look) Table {
	t := Table{Sort: "-time", Total: len(f.View.Recent) + f.View.Omitted.Recent, Columns: []Column{
		{Key: "time", Head: "TIME", Least: 8},
		{Key: "workload", Head: "WORKLOAD", Names: true, Least: 12},
		{Key: "replicas", Head: "REPLICAS", Least: 8},
		{Key: "rule", Head: "RULE"},
		{Key: "why", Head: "WHY", Rest: true, Least: 20},
	}}
	for i := range f.View.Recent {
		e := &f.View.Recent[i]
		d := &e.Decision
		at := Cell{Text: d.Time.Local().Format("15:04:05"), Value: d.Time.UTC().Format("2006-01-02T15:04:05.000Z")}
		if look.Now.Sub(d.Time) > 12*time.Hour {
			at.Text = d.Time.Local().Format("01-02 15:04")
		}
		name := e.Namespace + "/" + e.Name
		change := text(fmt.Sprintf("%d → %d", d.Current, d.Replicas))
		if e.Advice {
			change.Text, change.Style = change.Text+" (advice)", Faint
		} else if d.Replicas > d.Current {
			change.Style = Good
		}
		t.Rows = append(t.Rows, Row{
			ID: eventID(e), Labels: map[string]string{"namespace": e.Namespace, "name": e.Name, "rule": string(d.Rule)},
			Cells: []Cell{at, text(name), change, text(string(d.Rule)), text(d.Reason())},
		})
	}
	return t
}

// short is a duration in one or two parts, such as 3m or 2h15m.
func short(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", d.Truncate(time.Second).Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"bytes"
	"fmt"
	"strings"
	"text/template"
	"time"
)

// object is the GPUAutoscaler of a candidate. Why writes the comments of a field.
const object = `apiVersion: gpupilot.dev/v1alpha1
kind: GPUAutoscaler
metadata:
  name: model # yours
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: model} # yours
{{- .Why "  " "min"}}
  minReplicas: {{.Min}}
{{- .Why "  " "max"}}
  maxReplicas: {{.Max}}
{{- .Why "  " "signal"}}
  signals:
{{- .Why "    " "target"}}
{{- if eq .Signal "SM activity"}}
    - gpu: {metric: SMActive}
      target: {value: "{{.Target}}"}
{{- else}}
    - preset: vllm # or your server's
{{- if eq .Signal "requests running and waiting"}}
      target: {value: "{{.Target}}"}
{{- else}}
      slo: {interTokenLatency: {{.Limit}}ms, timeToFirstToken: {{.First}}s, objective: "{{.Target}}%"}
{{- end}}
{{- end}}
{{- .Why "  " "window"}}
{{- if .Window}}
  behavior:
    scaleDown: {stabilizationWindowSeconds: {{.Window}}}
{{- end}}
`

// commented is a candidate with comments by field.
type commented struct {
	*candidate
	comments map[string][]string
}

// Why returns the comment lines above a field.
func (c commented) Why(indent, field string) string {
	out := ""
	for _, line := range c.comments[field] {
		out += "\n" + indent + "# " + line
	}
	return out
}

func (c *candidate) yaml(comments map[string][]string) ([]byte, error) {
	t, err := template.New("object").Parse(object)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, commented{c, comments})
	return b.Bytes(), err
}

func (c *candidate) result() string {
	return fmt.Sprintf("%.2f %% missed for %.1f GPU-hours", c.violations, c.gpuHours)
}

// reasons returns comments that compare the best candidate with those that differ in one
// field. The others are sorted, best first.
func reasons(best *candidate, others []*candidate) map[string][]string {
	out := map[string][]string{
		"min":    {fmt.Sprintf("The quietest minute asked for %.1f; more is a reserve for what no replay had.", best.leastNeed)},
		"max":    {fmt.Sprintf("%g times the most that the replays came to: it bounds a mistake, not the load.", maxFactor)},
		"signal": {fmt.Sprintf("On %s: %s.", best.Signal, best.result())},
	}
	add := func(field, format string, args ...any) { out[field] = append(out[field], fmt.Sprintf(format, args...)) }
	seen := map[string]bool{best.Signal: true}
	for _, c := range others {
		switch {
		case !seen[c.Signal]:
			seen[c.Signal] = true
			add("signal", "On %s, at its best: %s.", c.Signal, c.result())
		case c.Signal == best.Signal && c.Window == best.Window:
			add("target", "With %g: %s.", c.Target, c.result())
		case c.Signal == best.Signal && c.Target == best.Target:
			add("window", "With %s: %s.", windowText(c.Window), c.result())
		}
	}
	return out
}

// windowText describes a scale-down stabilisation.
func windowText(seconds int) string {
	if seconds == 0 {
		return "the plan's own window"
	}
	return fmt.Sprintf("stabilizationWindowSeconds: %d on the way down", seconds)
}

// longStart is the start-up time from which the summary recommends shorter starts.
const longStart = 4 * time.Minute

// summary returns the comment lines at the top: the replays, the result and the assumptions.
func (s *Search) summary(cases []Case, best *candidate) string {
	m, startup := &s.study.Models[0], time.Duration(s.study.Startups[0]*float64(time.Second))
	var names []string
	for _, t := range s.study.Traces {
		names = append(names, t.Name)
	}
	hours := 0.0
	for i := range cases {
		hours += cases[i].Hours
	}
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, "# "+format+"\n", args...) }
	line("From %d replays of %s, %.1f hours in all, on %s with starts of %v.", len(cases), strings.Join(names, ", "), hours, m.Name, startup)
	line("Load: %s.", ScaleText(cases))
	line("%s.", best.result())
	switch {
	case best.violations > s.allowed:
		line("No candidate keeps to %g %%: replicas that start faster, a warm reserve (minReplicas) or looser limits would.", s.allowed)
	case best.violations > margin*s.allowed:
		line("Of %d policies none keeps to %g %% of requests over %g s to the first token or %g ms between tokens with a margin of %.0f %%: this one misses the fewest.",
			len(s.candidates), s.allowed, m.TTFTLimit, 1000*m.ITLLimit, 100*(1-margin))
	default:
		line("The cheapest of %d policies that keep to %g %% of requests over %g s to the first token or %g ms between tokens, with a margin of %.0f %%.",
			len(s.candidates), s.allowed, m.TTFTLimit, 1000*m.ITLLimit, 100*(1-margin))
	}
	if n := len(cases); n > 2 {
		line("Chosen from the other replays, it keeps to %g %% in %d of %d.", s.allowed, s.outOfSample(n), n)
	}
	if best.Signal == onSM && m.SMActivity == nil {
		line("SM activity is simulated by a curve that is an assumption: measure your server (gpupilot load server) and give --calibration, or take requests.")
	}
	line("Simulated: apply it with actuation: Advise first, and look at what it would do.")
	if startup >= longStart {
		line("Starts are long: every minute less saves more than any setting here.")
	}
	return b.String()
}

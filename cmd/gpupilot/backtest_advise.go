// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/gpupilot/gpupilot/internal/backtest"
	"github.com/gpupilot/gpupilot/internal/policy"
)

// candidate is a policy that --advise tries.
type candidate struct {
	Signal string  // what it looks at
	Target float64 // of it, for each replica; of onLatency the limit, in milliseconds
	First  float64 // of onLatency: the limit of the time to the first token, in seconds
	Window int     // scale-down stabilisation, seconds; 0: the default
	Min    int
	Max    int

	violations, gpuHours float64 // means over the replays
	most                 int     // replicas, over the replays
	least                float64 // replicas that the load asked for, mean over a minute
}

// The signals that are tried. Requests are the better signal where the server
// tells them, its latency beside them better still; the GPU's is there for any.
const (
	onLatency  = "requests and the latency that they take"
	onRequests = "requests running and waiting"
	onSM       = "SM activity"
)

// candidates are what is tried for a server with these limits, in seconds, of
// the time between tokens and to the first. A policy that goes by a lower limit
// misses the server's own less often.
func candidates(itl, first float64) (out []*candidate) {
	for _, x := range []struct {
		signal  string
		targets []float64
	}{
		{onLatency, []float64{tenths(1000 * itl), tenths(800 * itl), tenths(650 * itl)}},
		{onRequests, []float64{3, 4, 6, 8, 12, 16}},
		{onSM, []float64{0.4, 0.5, 0.6, 0.7}},
	} {
		for _, target := range x.targets {
			for _, window := range []int{0, 300} {
				out = append(out, &candidate{Signal: x.signal, Target: target, First: first, Window: window, Min: 1, Max: widest})
			}
		}
	}
	return out
}

// tenths rounds to them: a limit in milliseconds as a person would write it.
func tenths(x float64) float64 { return math.Round(10*x) / 10 }

// widest is a maximum that is none.
const widest = 1000

// object is the GPUAutoscaler, with comments where there is something to say.
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
      slo: {interTokenLatency: {{.Target}}ms, timeToFirstToken: {{.First}}s}
{{- end}}
{{- end}}
{{- .Why "  " "window"}}
{{- if .Window}}
  behavior:
    scaleDown: {stabilizationWindowSeconds: {{.Window}}}
{{- end}}
`

// advice is a candidate with what speaks for it.
type advice struct {
	*candidate
	why map[string][]string
}

// Why is the comment above a field.
func (a advice) Why(indent, field string) string {
	out := ""
	for _, line := range a.why[field] {
		out += "\n" + indent + "# " + line
	}
	return out
}

func (c *candidate) yaml(why map[string][]string) ([]byte, error) {
	t, err := template.New("object").Parse(object)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, advice{c, why})
	return b.Bytes(), err
}

// recommend replays the study's load with each candidate and prints the one to
// begin with: the cheapest that misses no more than the objective, else the one
// that misses the fewest.
func (f *backtestFlags) recommend(ctx context.Context, s *backtest.Study, stdout, stderr io.Writer) error {
	if f.output != "table" || f.out != "" {
		return errors.New("--advise prints YAML: leave out -o and --out")
	}
	if s.High == 0 {
		s.Min, s.Max = 1, widest
	}
	all := candidates(s.Models[0].ITLLimit, s.Models[0].TTFTLimit)
	s.Ours, s.Peers, s.Also, s.Points = nil, nil, nil, true
	for i, c := range all {
		text, err := c.yaml(nil)
		if err != nil {
			return err
		}
		p, err := policy.Parse("candidate", text)
		if err != nil {
			return err
		}
		s.Ours = append(s.Ours, backtest.Ours(fmt.Sprint(i), p[0].Compiled))
	}
	cases, stopped := f.replay(ctx, s, stderr)
	if len(cases) == 0 {
		return stopped
	}
	for i, c := range all {
		c.take(cases, i)
	}
	slices.SortFunc(all, func(a, b *candidate) int { return a.better(b, f.slo) })
	best := all[0]
	best.Min, best.Max = max(1, int(math.Floor(best.least))), int(math.Ceil(spare*float64(best.most)))
	text, err := best.yaml(reasons(best, all[1:]))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s%s", f.preamble(s, cases, best), text)
	return errors.Join(err, stopped)
}

// spare is the room that a maximum leaves above what the replays needed: it is
// there to bound a mistake, not the load.
const spare = 1.5

// take sums up what the candidate came to.
func (c *candidate) take(cases []backtest.Case, i int) {
	n := float64(len(cases))
	c.least = math.Inf(1)
	for k := range cases {
		r := &cases[k].Ours[i]
		c.violations += r.Violations / n
		c.gpuHours += r.GPUHours / n
		c.most = max(c.most, r.ReplicasMax)
		for _, p := range r.Points {
			c.least = min(c.least, p.Need)
		}
	}
}

// better orders by what the objective asks for: what keeps it before what does
// not, then the cheaper, then the one that misses less.
func (c *candidate) better(d *candidate, slo float64) int {
	keeps := func(x *candidate) int {
		if x.violations <= slo {
			return 0
		}
		return 1
	}
	if keeps(c) == 1 && keeps(d) == 1 {
		return cmp.Or(cmp.Compare(c.violations, d.violations), cmp.Compare(c.gpuHours, d.gpuHours))
	}
	return cmp.Or(cmp.Compare(keeps(c), keeps(d)), cmp.Compare(c.gpuHours, d.gpuHours), cmp.Compare(c.violations, d.violations))
}

func (c *candidate) result() string {
	return fmt.Sprintf("%.2f %% missed for %.1f GPU-hours", c.violations, c.gpuHours)
}

// reasons compares the best with those that differ from it in one thing.
func reasons(best *candidate, others []*candidate) map[string][]string {
	why := map[string][]string{
		"min":    {fmt.Sprintf("The quietest minute asked for %.1f; more is a reserve for what no replay had.", best.least)},
		"max":    {fmt.Sprintf("%g times the most that the replays came to: it bounds a mistake, not the load.", spare)},
		"signal": {fmt.Sprintf("On %s: %s.", best.Signal, best.result())},
	}
	say := func(field, format string, args ...any) { why[field] = append(why[field], fmt.Sprintf(format, args...)) }
	signals := map[string]bool{best.Signal: true}
	for _, c := range others {
		switch {
		case !signals[c.Signal]:
			signals[c.Signal] = true
			say("signal", "On %s, at its best: %s.", c.Signal, c.result())
		case c.Signal == best.Signal && c.Window == best.Window:
			say("target", "With %g: %s.", c.Target, c.result())
		case c.Signal == best.Signal && c.Target == best.Target:
			say("window", "With %s: %s.", window(c.Window), c.result())
		}
	}
	return why
}

// window is a scale-down stabilisation in words.
func window(seconds int) string {
	if seconds == 0 {
		return "the default window on the way down"
	}
	return fmt.Sprintf("stabilizationWindowSeconds: %d on the way down", seconds)
}

// preamble says what the advice rests on.
func (f *backtestFlags) preamble(s *backtest.Study, cases []backtest.Case, best *candidate) string {
	var names []string
	for _, t := range s.Traces {
		names = append(names, t.Name)
	}
	hours := 0.0
	for i := range cases {
		hours += cases[i].Hours
	}
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, "# "+format+"\n", args...) }
	line("From %d replays of %s, %.1f hours in all, on %s with starts of %v.", len(cases), strings.Join(names, ", "), hours, s.Models[0].Name, f.startups[0])
	line("Load: %s.", backtest.Scale(cases))
	line("%s.", best.result())
	if best.violations > f.slo {
		line("No candidate keeps to %g %%: replicas that start faster, a warm reserve (minReplicas) or looser limits would.", f.slo)
	} else {
		line("The cheapest of %d policies that keep to %g %% of requests over %g s to the first token or %g ms between tokens.",
			len(s.Ours), f.slo, s.Models[0].TTFTLimit, 1000*s.Models[0].ITLLimit)
	}
	if best.Signal == onSM {
		line("SM activity is simulated by a curve that is an assumption: measure it on your server, or take requests.")
	}
	line("Simulated: apply it with actuation: Advise first, and look at what it would do.")
	if f.startups[0] >= 4*time.Minute {
		line("Starts are long: every minute less saves more than any setting here.")
	}
	return b.String()
}

// SPDX-License-Identifier: Apache-2.0

// Package explain says what would change the last decision of a GPUAutoscaler, from its
// status alone.
package explain

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/memory"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/whatif"
)

// Changes returns sentences that say which signal values would change the last decision, all
// else being equal.
func Changes(a *v1alpha1.GPUAutoscaler) (out []string, err error) {
	c, err := Case(a)
	if err != nil {
		return nil, err
	}
	for _, x := range whatif.Changes(c) {
		word := "below"
		if x.Up {
			word = "above"
		}
		held := ""
		if x.Held >= 5*time.Second {
			held = " for " + about(x.Held)
		}
		noun := "replicas"
		if x.Replicas == 1 {
			noun = "replica"
		}
		out = append(out, fmt.Sprintf("%d %s if %s is %s %s%s (now %s)", x.Replicas, noun, x.Signal, word, quantity(x.Value, x.Unit), held, quantity(x.Now, "")))
	}
	return out, nil
}

// quantity formats a value with three digits.
func quantity(v float64, unit string) string {
	s := strconv.FormatFloat(v, 'g', 3, 64)
	if v >= 1000 {
		s = strconv.FormatFloat(v, 'f', 0, 64)
	}
	if unit != "" && unit != "ratio" {
		s += " " + unit
	}
	return s
}

// about formats a duration roughly.
func about(d time.Duration) string {
	if d < 2*time.Minute {
		return fmt.Sprintf("%d s", int(d.Round(5*time.Second).Seconds()))
	}
	return fmt.Sprintf("%d min", int(d.Round(time.Minute).Minutes()))
}

// maxReplicas bounds the replicas of a decision that is repeated: whoever may write the status chooses their numbers.
const maxReplicas = 10_000

// Case reconstructs the last decision from the status. The status has the mean of each
// signal, not the values of single pods, and no ages: starting pods count as just
// created. It lacks the number of GPUs per replica, so the budget applies only if it
// decided last.
func Case(a *v1alpha1.GPUAutoscaler) (*whatif.Case, error) {
	compiled, err := policy.Compile(a)
	if err != nil {
		return nil, err
	}
	st, d := &a.Status, a.Status.LastDecision
	if st.DesiredReplicas == nil {
		return nil, errors.New("the status has no desiredReplicas")
	}
	for _, n := range []int32{st.ServingReplicas, st.StartingReplicas, st.UnschedulableReplicas} {
		if n < 0 || n > maxReplicas {
			return nil, fmt.Errorf("the status has %d replicas in one phase, want 0 to %d", n, maxReplicas)
		}
	}
	if len(d.Inputs) != len(compiled.Policy.Signals) {
		return nil, fmt.Errorf("the status has %d inputs for %d signals", len(d.Inputs), len(compiled.Policy.Signals))
	}
	c := &whatif.Case{Policy: compiled.Policy, Now: d.Time.Time}
	if c.Policy.Startup == 0 && st.Startup != nil {
		c.Policy.Startup = time.Duration(st.Startup.P95Seconds) * time.Second
		c.Policy.TypicalStartup = time.Duration(st.Startup.P75Seconds) * time.Second
	}
	if d.Reason == string(scale.RuleBudget) {
		c.Policy.Max = min(c.Policy.Max, *st.DesiredReplicas)
	}
	if m := st.Memory; m != nil {
		if c.State, err = memory.Stored(m); err != nil {
			return nil, err
		}
		c.Now = m.Time.Time
	}
	since := time.Time{}
	if st.Override != nil {
		since = st.Override.Since.Time
	}
	compiled.Apply(&c.Policy, c.Now, since)
	c.Observation = observationOf(st, compiled.Sources, c)
	return c, nil
}

func observationOf(st *v1alpha1.GPUAutoscalerStatus, sources []policy.Source, c *whatif.Case) scale.Observation {
	c.Policy.Drain = 0 // replicas that leave are not replicas for the signals
	o := scale.Observation{Replicas: max(0, *st.DesiredReplicas-st.DrainingReplicas)}
	add := func(n int32, phase scale.Phase, since time.Time) {
		for range n {
			o.Pods = append(o.Pods, scale.Replica{Phase: phase, Since: since, Readings: make([]scale.Reading, len(sources))})
		}
	}
	add(st.ServingReplicas, scale.Serving, c.Now.Add(-24*time.Hour))
	add(st.StartingReplicas, scale.Starting, c.Now)
	add(st.UnschedulableReplicas, scale.Unschedulable, c.Now)
	for i, in := range st.LastDecision.Inputs {
		v, err := strconv.ParseFloat(in.Value, 64)
		if err != nil {
			continue // not readable
		}
		r := scale.Reading{Value: v, At: c.Now, OK: true}
		if sources[i].Kind == policy.Query {
			o.Totals = append(o.Totals, make([]scale.Reading, i+1-len(o.Totals))...)
			o.Totals[i] = r
			continue
		}
		r.Value = whatif.Reading(&c.Policy.Signals[i], v, float64(in.Replicas))
		for k := range min(int(in.Replicas), int(st.ServingReplicas)) {
			o.Pods[k].Readings[i] = r
		}
	}
	return o
}

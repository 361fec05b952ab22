// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/explain"
)

// Write writes the last decision of a.
func Write(out io.Writer, a *v1alpha1.GPUAutoscaler, now time.Time) {
	s := &a.Status
	desired := "nothing decided"
	if s.DesiredReplicas != nil {
		desired = fmt.Sprintf("%d desired", *s.DesiredReplicas)
	}
	fmt.Fprintf(out, "%s/%s scales %s %s: %d now, %d serving, %d starting, %s\n",
		a.Namespace, a.Name, a.Spec.ScaleTargetRef.Kind, a.Spec.ScaleTargetRef.Name,
		s.CurrentReplicas, s.ServingReplicas, s.StartingReplicas, desired)
	if by := setBy(a); by != "" {
		fmt.Fprintf(out, "  %s (actuation: %s)\n", by, a.Spec.Actuation)
	}
	var said []string
	for _, c := range s.Conditions {
		if explain.IsNotable(&c) && !slices.Contains(said, c.Message) { // Ready has the message of the condition that it is not ready for
			said = append(said, c.Message)
			fmt.Fprintf(out, "  %s is %s (%s): %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	if a.Spec.OnDelete == v1alpha1.OnDeleteRestore {
		fmt.Fprintf(out, "  when it is deleted, %s\n", explain.Deletion(a))
	}
	for _, p := range s.Pending {
		fmt.Fprintf(out, "  %d held up by %s: %s\n", p.Replicas, p.Reason, p.Message)
	}
	if s.Startup != nil {
		fmt.Fprintf(out, "a replica takes %d s to serve (p95 %d s, %d starts seen)\n", s.Startup.P50Seconds, s.Startup.P95Seconds, s.Startup.Samples)
	}
	for _, o := range s.Objectives {
		fmt.Fprintf(out, "objective of %s: %s\n", o.Signal, o.Message)
	}
	d := s.LastDecision
	if d == nil {
		fmt.Fprintln(out, "nothing decided yet")
		return
	}
	fmt.Fprintf(out, "decided %s ago, %s:\n", now.Sub(d.Time.Time).Round(time.Second), d.Reason)
	for _, st := range d.Steps {
		fmt.Fprintf(out, "  %d → %d  %-14s %s\n", st.Before, st.After, st.Rule, st.Message)
	}
	for _, in := range d.Inputs {
		value := "not readable"
		if in.Value != "" {
			value = fmt.Sprintf("%s%s, %d ms old, from %d", in.Value, unit(in.Unit), in.AgeMilliseconds, in.Replicas)
		}
		mark := ""
		if in.Deciding && len(d.Inputs) > 1 {
			mark = ", decides"
		}
		fmt.Fprintf(out, "  input %s: %s (target %s%s)%s\n", in.Signal, value, in.Target, unit(in.Unit), mark)
	}
	writeChanges(out, a)
}

// setBy says who sets the replicas; empty: the controller.
func setBy(a *v1alpha1.GPUAutoscaler) string {
	switch h := a.Status.HPA; {
	case a.Spec.Actuation == v1alpha1.ActuationAdvise:
		return "decisions are reported, and not written"
	case a.Spec.Actuation != v1alpha1.ActuationHPA:
		return ""
	case h == nil:
		return "no HorizontalPodAutoscaler of this object exists yet"
	default:
		return "HorizontalPodAutoscaler " + h.Name + " sets the desired replicas at its next sync"
	}
}

// unit returns a unit as a suffix of a number.
func unit(u string) string {
	if u == "" {
		return ""
	}
	return " " + u
}

// writeChanges writes what would change the last decision.
func writeChanges(out io.Writer, a *v1alpha1.GPUAutoscaler) {
	all, err := explain.Changes(a)
	switch {
	case err != nil:
		fmt.Fprintf(out, "cannot determine what would change it: %v\n", err)
	case !slices.ContainsFunc(a.Status.LastDecision.Inputs, func(in v1alpha1.InputStatus) bool { return in.Value != "" }):
		fmt.Fprintln(out, "no signal has a value now: this decision changes when one has")
	case len(all) == 0:
		fmt.Fprintln(out, "no value of one signal alone would change this decision")
	default:
		fmt.Fprintln(out, "what would change it, all else being equal:")
	}
	for _, x := range all {
		fmt.Fprintln(out, "  "+x)
	}
}

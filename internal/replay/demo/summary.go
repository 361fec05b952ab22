// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"strings"
)

// Summary says what the demo came to, for somebody who does not know autoscalers.
func (s *State) Summary() string {
	var b strings.Builder
	ours := s.Contestants[0]
	fmt.Fprintf(&b, "The promise was %g %% of the requests within the limits, over %d minutes and %d requests.\n\n", s.Objective, s.Second/60, ours.Ended)
	fmt.Fprintf(&b, "%-26s %-8s %10s %10s %10s\n", "", "promise", "missed", "GPU-hours", "cost")
	for _, c := range s.Contestants {
		kept := "kept"
		if !c.Kept {
			kept = "broken"
		}
		cost := "–"
		if c.Cost != nil {
			cost = fmt.Sprintf("$%.2f", *c.Cost)
		}
		fmt.Fprintf(&b, "%-26s %-8s %8.2f %% %10.1f %10s\n", c.Name, kept, c.MissedPercent, c.GPUHours, cost)
	}
	fmt.Fprintf(&b, "\n%s\n", s.verdict())
	if s.Price > 0 {
		fmt.Fprintf(&b, "Costs are at $%g per GPU-hour.\n", s.Price)
	}
	return b.String()
}

// verdict compares GPUPilot with the cheapest of the others that kept the promise.
func (s *State) verdict() string {
	ours, best := s.Contestants[0], -1
	for i := 1; i < len(s.Contestants); i++ {
		if c := &s.Contestants[i]; c.Kept && (best < 0 || c.GPUHours < s.Contestants[best].GPUHours) {
			best = i
		}
	}
	switch {
	case !ours.Kept:
		return "GPUPilot did not keep the promise on this load. Its page says when a load jumps faster than replicas start."
	case best < 0:
		return "Only GPUPilot kept the promise."
	}
	saved := 1 - ours.GPUHours/s.Contestants[best].GPUHours
	if saved < 0 {
		return fmt.Sprintf("GPUPilot kept the promise, with %.0f %% more GPU-hours than %s.", -100*saved, s.Contestants[best].Name)
	}
	return fmt.Sprintf("GPUPilot kept the promise with %.0f %% fewer GPU-hours than %s.", 100*saved, s.Contestants[best].Name)
}

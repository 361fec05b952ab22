// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/replay/backtest"
)

// DryRun compares an object with its equivalent on recorded load.
type DryRun struct {
	// Reason says why there was no replay; empty: there was one.
	Reason      string        `json:"reason,omitempty"`
	Replays     int           `json:"replays,omitempty"`
	Hours       float64       `json:"hours,omitempty"` // of all replays
	Startup     time.Duration `json:"-"`
	Original    Replayed      `json:"original"`
	Equivalent  Replayed      `json:"equivalent"`
	Unsimulated []Note        `json:"unsimulated,omitempty"`
}

// Replayed is what replays of one object came to.
type Replayed struct {
	ReplicaHours  float64 `json:"replicaHours"`  // sum
	MissedPercent float64 `json:"missedPercent"` // of the requests, over a latency limit or given up; mean
	TurnsPerHour  float64 `json:"turnsPerHour"`  // changes of direction; mean
	MostReplicas  int     `json:"mostReplicas"`

	replays float64
}

// Add adds one replay.
func (r *Replayed) Add(replicaHours, missedPercent, turnsPerHour float64, mostReplicas int) {
	mean := func(old, x float64) float64 { return (old*r.replays + x) / (r.replays + 1) }
	r.ReplicaHours += replicaHours
	r.MissedPercent, r.TurnsPerHour = mean(r.MissedPercent, missedPercent), mean(r.TurnsPerHour, turnsPerHour)
	r.MostReplicas = max(r.MostReplicas, mostReplicas)
	r.replays++
}

// Text returns the comparison in a few lines.
func (d *DryRun) Text() string {
	if d.Reason != "" {
		return "Dry run: " + d.Reason + "\n"
	}
	var b strings.Builder
	replays := fmt.Sprintf("%d replays", d.Replays)
	if d.Replays == 1 {
		replays = "1 replay"
	}
	fmt.Fprintf(&b, "Dry run: %s, %.3g hours, a replica starts in %v (median)\n", replays, d.Hours, d.Startup)
	fmt.Fprintf(&b, "  %-28s %12s %12s\n", "", "today", "GPUAutoscaler")
	fmt.Fprintf(&b, "  %-28s %12.1f %12.1f\n", "replica-hours", d.Original.ReplicaHours, d.Equivalent.ReplicaHours)
	fmt.Fprintf(&b, "  %-28s %11.2f%% %11.2f%%\n", "requests over a limit", d.Original.MissedPercent, d.Equivalent.MissedPercent)
	fmt.Fprintf(&b, "  %-28s %12.1f %12.1f\n", "changes of direction/hour", d.Original.TurnsPerHour, d.Equivalent.TurnsPerHour)
	fmt.Fprintf(&b, "  %-28s %12d %12d\n", "most replicas", d.Original.MostReplicas, d.Equivalent.MostReplicas)
	for _, n := range d.Unsimulated {
		fmt.Fprintf(&b, "  not simulated: %s: %s\n", n.Field, n.Text)
	}
	return b.String()
}

// DryRun averages the cases in which the equivalent and the original were replayed, in this order.
func (r *Result) DryRun(cases []backtest.Case, s *backtest.Study) *DryRun {
	out := &DryRun{Unsimulated: r.Unsimulated}
	gpus := map[string]float64{}
	for _, m := range s.Models {
		gpus[m.Name] = float64(m.GPUs)
	}
	for i := range cases {
		c := &cases[i]
		out.Hours += c.Hours
		for k, x := range []*Replayed{&out.Equivalent, &out.Original} {
			o := &c.Ours[k]
			x.Add(o.Outcome.GPUHours/gpus[c.Model], o.Outcome.Violations, o.Outcome.Turns, o.Outcome.ReplicasMax)
		}
	}
	out.Replays = len(cases)
	out.Startup = time.Duration(s.Startups[0] * float64(time.Second))
	return out
}

// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/drain"
)

// drains is what a timeline says about scale-downs that wait for requests.
type drains struct {
	ungated bool // pods that appear from now on do not declare the readiness gate
	ordered bool // the highest ordinals are removed, as of a StatefulSet
	budget  []drain.Budget
}

// parseBudget parses NAME:ALLOWED of a PodDisruptionBudget that covers all pods.
func parseBudget(s string) ([]drain.Budget, error) {
	name, allowed, ok := strings.Cut(s, ":")
	n, err := parseCount(allowed)
	if !ok || name == "" || err != nil {
		return nil, fmt.Errorf("%q: want a PodDisruptionBudget and the disruptions that it allows, such as chat:0", s)
	}
	return []drain.Budget{{Name: name, Allowed: n}}, nil
}

// observeDrain adds to a replica what a scale-down that waits needs. The first signal
// counts the requests in flight.
func (w *world) observeDrain(r *scale.Replica, p *pod, now time.Time) {
	if r.Gated = !p.ungated; w.ordered {
		n, err := strconv.Atoi(strings.TrimPrefix(p.name, "pod-"))
		if err == nil {
			r.Ordinal = int32(n)
		}
	}
	for _, b := range w.budget {
		r.Disrupts = append(r.Disrupts, b.Name)
	}
	if p.phase != scale.Serving || p.leftAt.IsZero() {
		return
	}
	r.Phase, r.Since, r.Out = scale.Leaving, p.leftAt, now.Sub(p.leftAt) >= time.Second
	if len(r.Readings) > 0 {
		r.InFlight = r.Readings[0]
	}
}

// applyDrain takes pods out of the endpoints, has others serve again, and, if the replicas fall,
// removes those that have left.
func (w *world) applyDrain(d *scale.Decision, now time.Time, removes bool) {
	serving := 0
	for i := 0; i < len(w.pods); i++ {
		p := &w.pods[i]
		if p.phase != scale.Serving {
			continue
		}
		switch leaves := slices.Contains(d.Leave, p.name); {
		case removes && leaves && !p.leftAt.IsZero() && slices.Contains(d.Victims, p.name):
			w.pods = slices.Delete(w.pods, i, i+1)
			w.groups[scale.Serving].remove(serving)
			i--
			continue
		case leaves && p.leftAt.IsZero():
			p.leftAt = now
		case !leaves:
			p.leftAt = time.Time{}
		}
		serving++
	}
}

// remove removes pod i of a group, with its value.
func (g *group) remove(i int) {
	if g.count--; len(g.values) > 1 && i < len(g.values) {
		g.values, g.absent = slices.Delete(slices.Clone(g.values), i, i+1), slices.Delete(slices.Clone(g.absent), i, i+1)
	}
}

// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/facts"
)

// limit applies the rate policies of the direction in which want lies, with
// the HorizontalPodAutoscaler's arithmetic: each policy bounds the distance
// from where the replicas were at the start of its period.
func (e *engine) limit(want int32, changes []Change) ruling {
	cur := e.o.Replicas
	if want == cur {
		return ruling{}
	}
	down := want < cur
	selected, policies := e.p.Up.Select, e.p.Up.Policies
	if down {
		selected, policies = e.p.Down.Select, e.p.downPolicies()
	}
	first := down && e.young && e.p.descendsByDefault()
	if first {
		policies = []RatePolicy{{Value: 1, Period: min(firstDescent, max(descentPeriod, e.p.typicalStartup()))}}
	}
	if selected == SelectDisabled {
		return ruling{RuleDisabled, cur, facts.Disabled(down)}
	}
	if len(policies) == 0 {
		return ruling{}
	}
	limit, period := e.rateLimit(selected, policies, changes, down)
	switch rate := (facts.Rate{Limit: limit, Window: period, Down: down}); {
	case first && want < limit:
		return ruling{RuleDescent, min(limit, cur), facts.FirstDescent(period)}
	case down && want < limit && len(e.p.Down.Policies) == 0:
		return ruling{RuleDescent, min(limit, cur), facts.Descent(period)}
	case down && want < limit:
		return ruling{RuleRate, min(limit, cur), rate}
	case !down && want > limit:
		return ruling{RuleRate, max(limit, cur), rate}
	}
	return ruling{}
}

// firstDescent is the longest time in which a promise gives up one replica while the record of its load is short: nobody
// knows how soon a load comes back, and a start-up later it can be served.
const firstDescent = 2 * time.Minute

// rateLimit is how far the rate policies let the replicas go now, and the period
// of the policy that sets this limit.
func (e *engine) rateLimit(selected Select, policies []RatePolicy, changes []Change, down bool) (limit int32, period time.Duration) {
	for i, rp := range policies {
		start := e.o.Replicas -
			moved(changes, e.now, rp.Period, false) + moved(changes, e.now, rp.Period, true)
		l := rp.reach(start, down)
		// The larger change is the higher limit going up, the lower going down.
		farther := l > limit
		if down {
			farther = l < limit
		}
		if i == 0 || farther == (selected == SelectMax) && l != limit {
			limit, period = l, rp.Period
		}
	}
	return limit, period
}

// reach is how far the policy lets replicas go from start.
func (rp RatePolicy) reach(start int32, down bool) int32 {
	x := float64(rp.Value)
	if rp.Percent {
		x = float64(start) * x / 100
	}
	if down {
		return int32(max(0, math.Floor(float64(start)-x+1e-9)))
	}
	return int32(min(math.MaxInt32/2, float64(start)+math.Ceil(x-1e-9)))
}

// descendsByDefault reports whether the policy leaves the rate downward to us.
func (p *Policy) descendsByDefault() bool { return p.Down.Window < 0 && len(p.Down.Policies) == 0 }

// longestPeriod is the longest period of a rate policy.
func (p *Policy) longestPeriod() (longest time.Duration) {
	if p.descendsByDefault() {
		longest = firstDescent
	}
	for _, policies := range [][]RatePolicy{p.Up.Policies, p.downPolicies()} {
		for _, rp := range policies {
			longest = max(longest, rp.Period)
		}
	}
	return longest
}

// Change is an observed change of spec.replicas, whoever made it.
type Change struct {
	At    time.Time `json:"at"`
	Delta int32     `json:"delta"`
}

// record returns changes with c, without those older than period. It never
// writes to changes.
func record(changes []Change, c Change, period time.Duration) []Change {
	old := func(x Change) bool { return !isRecent(x.At, c.At, period) }
	if slices.ContainsFunc(changes, old) {
		changes = slices.DeleteFunc(slices.Clone(changes), old)
	}
	if c.Delta == 0 {
		return changes
	}
	changes = changes[max(0, len(changes)-maxChanges+1):]
	return slices.Concat(changes, []Change{c})
}

// moved sums the changes in one direction within period, as a number ≥ 0.
func moved(changes []Change, now time.Time, period time.Duration, down bool) (n int32) {
	for _, c := range changes {
		if age := now.Sub(c.At); age < 0 || age >= period {
			continue
		}
		if down && c.Delta < 0 {
			n -= c.Delta
		}
		if !down && c.Delta > 0 {
			n += c.Delta
		}
	}
	return n
}

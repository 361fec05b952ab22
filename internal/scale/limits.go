// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"time"
)

// limit applies the rate policies of the direction in which want lies, with
// the HorizontalPodAutoscaler's arithmetic: each policy bounds the distance
// from where the replicas were at the start of its period.
func (e *engine) limit(want int32, s *State) int32 {
	cur := e.o.Replicas
	if want == cur {
		return want
	}
	down := want < cur
	rules := &e.p.Up
	if down {
		rules = &e.p.Down
	}
	if rules.Select == SelectDisabled {
		return e.step(RuleDisabled, want, cur, Facts{Down: down})
	}
	if len(rules.Policies) == 0 {
		return want
	}
	limit, period := e.rateLimit(rules, s, down)
	if down && want < limit {
		return e.step(RuleRate, want, min(limit, cur), Facts{Limit: limit, Window: period, Down: true})
	}
	if !down && want > limit {
		return e.step(RuleRate, want, max(limit, cur), Facts{Limit: limit, Window: period})
	}
	return want
}

// rateLimit is the farthest that the rules let the replicas go now, and the
// period of the policy that says so.
func (e *engine) rateLimit(rules *Rules, s *State, down bool) (limit int32, period time.Duration) {
	for i, rp := range rules.Policies {
		start := e.o.Replicas -
			moved(s.Changes, e.now, rp.Period, false) + moved(s.Changes, e.now, rp.Period, true)
		l := rp.reach(start, down)
		// The larger change is the higher limit going up, the lower going down.
		farther := l > limit
		if down {
			farther = l < limit
		}
		if i == 0 || farther == (rules.Select == SelectMax) && l != limit {
			limit, period = l, rp.Period
		}
	}
	return limit, period
}

// reach is how far the policy lets replicas go that were at start.
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

// longestPeriod is how long changes must be remembered.
func (p *Policy) longestPeriod() (longest time.Duration) {
	for _, rules := range []*Rules{&p.Up, &p.Down} {
		for _, rp := range rules.Policies {
			longest = max(longest, rp.Period)
		}
	}
	return longest
}

// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"fmt"
	"math"
)

// The share of the GPU-hours from which a change is worth it, and the ratio to the oracle's from which a search is.
const (
	worthChange = 0.05
	worthSearch = 1.5
)

// change says what the user should change, of a promise among all.
func (s *Study) change(p *Promise, all []Promise, cases []Case) string {
	var best *Promise // the cheapest of the others that keeps as much
	for i := range all {
		if q := &all[i]; q.Contender != p.Contender && q.Replays > 0 && q.Missed <= 100-p.Percent && (best == nil || q.GPUHoursPerMonth < best.GPUHoursPerMonth) {
			best = q
		}
	}
	if p.Missed <= 100-p.Percent {
		switch {
		case best != nil && best.GPUHoursPerMonth < p.GPUHoursPerMonth*(1-worthChange):
			return fmt.Sprintf("use %s: it keeps %g %% too, for %.0f %% fewer GPU-hours", shorten(best.Contender, policyWidth), p.Percent, 100*(1-best.GPUHoursPerMonth/p.GPUHoursPerMonth))
		case p.OverOracle > worthSearch:
			return fmt.Sprintf("look for a cheaper policy with --advise: the oracle takes %.0f %% fewer GPU-hours", 100*(1-1/p.OverOracle))
		}
		return "nothing"
	}
	most, bounded, lost := s.limits(p, cases)
	switch {
	case bounded > 0:
		return fmt.Sprintf("raise maxReplicas: the replays that missed it were at %d in %d of %d", most, bounded, p.Replays-p.Kept)
	case best != nil:
		return fmt.Sprintf("use %s: it keeps %g %%, for %s", shorten(best.Contender, policyWidth), p.Percent, relative(best.GPUHoursPerMonth, p.GPUHoursPerMonth))
	case lost == p.Replays:
		return "shorten the starts, raise minReplicas, or allow more: the oracle does not keep it either"
	}
	return "look for a policy that keeps it with --advise"
}

// relative says how many GPU-hours one takes in comparison with another.
func relative(one, other float64) string {
	switch percent := 100 * (one/math.Max(other, 1e-9) - 1); {
	case math.Abs(percent) < 0.5:
		return "as many GPU-hours"
	case percent > 0:
		return fmt.Sprintf("%.0f %% more GPU-hours", percent)
	default:
		return fmt.Sprintf("%.0f %% fewer GPU-hours", -percent)
	}
}

// limits returns the policy's maximum, in how many of the replays that miss the objective it was reached, and in how many
// replays no oracle keeps it.
func (s *Study) limits(p *Promise, cases []Case) (most, bounded, lost int) {
	for i := range s.Ours {
		if s.Ours[i].Name == p.Contender && s.High == 0 { // the bounds of a policy are not applied to a scaled load
			most = int(s.Ours[i].Max)
		}
	}
	for i := range cases {
		c := &cases[i]
		for k := range c.Ours {
			if r := &c.Ours[k]; r.Name == p.Contender && r.Violations > 100-p.Percent && most > 0 && r.ReplicasMax >= most {
				bounded++
			}
		}
		if o := c.oracle(100 - p.Percent); o != nil && o.Violations > 100-p.Percent {
			lost++
		}
	}
	return most, bounded, lost
}

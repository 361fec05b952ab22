// SPDX-License-Identifier: Apache-2.0

package promise

import "math"

// Pace counts the requests that ended within about the time over which the objective is
// judged, and those of them that missed a limit, whatever the cause. Older ones weigh less.
// It paces the budget of misses: what plans may miss follows what is left of it.
//
// The misses are bounded whatever the load does, as long as it can be kept: see
// docs/design/0014-promise.md and TestTheBudgetIsPaced.
type Pace struct {
	Ended  float64 `json:"ended"`
	Missed float64 `json:"missed"`
}

const (
	// paceSeconds is the time in which plans spend what was saved, in seconds of the traffic of the last minutes. They
	// pay back what was spent too much in the part paidBack of the time over which the objective is judged. With an
	// eighth of four weeks, a load of many jumps missed 1.0 and 1.14 % in six days, with a fourteenth 0.92 and 1.09 %.
	paceSeconds, paidBack = 24 * 3600, 1.0 / 14
	// planned is how much of the share to be used plans aim at: jumps of the load cost misses that no plan has. With all of it,
	// six days used up to 134 % of what is allowed instead of 102 %, with a median of 92 instead of 75 %, for 5 % fewer
	// GPU-hours where starts take 7 minutes.
	planned = 0.75
	// earlyUse is the share of the allowed misses that plans aim at before anything was
	// measured. It becomes that of Terms.Use with the requests of a day.
	earlyUse = 0.35
	// leastAim and mostAim bound what plans aim at, as multiples of the share to be used.
	leastAim, mostAim = 0.1, 2.0
)

// next is the pace after a step of some seconds, for an objective over some seconds.
func (p Pace) next(ended, missed, seconds, over float64) Pace {
	keep := math.Exp(-seconds / max(over, seconds))
	return Pace{Ended: p.Ended*keep + ended, Missed: p.Missed*keep + min(missed, ended)}
}

// aim is the share of the requests that should miss a limit from now on, where perSecond
// requests end a second. left is the same as a multiple of the share that is planned for.
func (p *Pace) aim(t *Terms, perSecond float64) (aim, left float64) {
	ahead := max(perSecond*paceSeconds, least)
	known := p.Ended / (p.Ended + ahead)
	share := (earlyUse + (planned*t.Use-earlyUse)*known) * t.allowed()
	saved := share*p.Ended - p.Missed // below 0: spent too much
	if saved < 0 {
		ahead *= paidBack * t.Over / paceSeconds
	}
	left = min(max(1+saved/ahead/share, leastAim), mostAim)
	return left * share, left
}

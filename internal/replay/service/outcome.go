// SPDX-License-Identifier: Apache-2.0

package service

import (
	"math"
	"slices"
)

// Outcome is what a replay came to after the warm-up. Percentages are of the requests,
// unless noted.
type Outcome struct {
	Requests    int     `json:"requests"`          // feasible ones
	Infeasible  int     `json:"hopeless"`          // requests that miss the TTFT limit on an idle replica
	Violations  float64 `json:"violationsPercent"` // over a limit or given up
	Late        float64 `json:"ttftPercent"`       // over the TTFT limit
	Slow        float64 `json:"itlPercent"`        // over the ITL limit
	GaveUp      float64 `json:"gaveUpPercent"`
	GPUHours    float64 `json:"gpuHours"`     // from the binding of a pod to its end
	Under       float64 `json:"underPercent"` // of the time, with fewer ready pods than needed
	Over        float64 `json:"overPercent"`  // of the time, with more ready pods than needed
	Overshoot   float64 `json:"overshoot"`    // most replicas ÷ highest need
	Turns       float64 `json:"turnsPerHour"` // changes of direction
	Killed      int     `json:"startingKilled"`
	Cascades    int     `json:"cascades"`        // increases past 1.5 × the need while pods start
	Reaction    float64 `json:"reactionSeconds"` // mean, from a need above the replicas to an increase; 0: no increase
	PeakNeed    float64 `json:"peakNeed"`        // replicas, after the warm-up
	ReplicasMax int     `json:"replicasMax"`
}

// PeakNeed returns the highest need after the warm-up.
func (c *Config) PeakNeed() float64 {
	peak := 0.0
	for _, x := range c.Need[min(len(c.Need)-1, int(c.Warmup/NeedSeconds)):] {
		peak = max(peak, x)
	}
	return peak
}

// Outcome returns the outcome so far. Requests that were never answered count as given up.
func (d *Deployment) Outcome() Outcome {
	s := &d.stats
	hours := s.seconds / 3600
	unanswered := s.requests - s.ended
	percent := func(n int) float64 { return 100 * float64(n) / math.Max(1, float64(s.requests)) }
	peak := d.cfg.PeakNeed()
	out := Outcome{
		Requests: s.requests, Infeasible: s.infeasible,
		Violations: percent(s.violations + unanswered),
		Late:       percent(s.late), Slow: percent(s.slow), GaveUp: percent(s.gaveUp + unanswered),
		GPUHours: s.gpuSeconds / 3600, Under: 100 * s.under / s.seconds, Over: 100 * s.over / s.seconds,
		Overshoot: float64(s.mostReplicas) / math.Max(1, math.Ceil(peak)), Turns: float64(s.turns) / hours,
		Killed: s.startsDeleted, Cascades: s.cascades, PeakNeed: peak, ReplicasMax: s.mostReplicas,
	}
	if s.reactions > 0 {
		out.Reaction = s.reactionSeconds / float64(s.reactions)
	}
	return out
}

// Tally returns the counted requests that have ended, those of them that missed a limit or
// were given up, and the GPU-hours, all until now. Unlike in Outcome, requests in flight do
// not count.
func (d *Deployment) Tally() (ended, missed int, gpuHours float64) {
	s := &d.stats
	return s.ended, s.violations, s.gpuSeconds / 3600
}

// Unanswered returns the number of counted requests that have not ended.
func (d *Deployment) Unanswered() int { return d.stats.requests - d.stats.ended }

// Minutes returns the minutes of the replay, including the warm-up.
func (d *Deployment) Minutes() []Minute {
	s := &d.stats
	end := s.cfg.Warmup + s.seconds
	out := slices.Clone(s.minutes[:min(len(s.minutes), int(math.Ceil(end/MinuteSeconds)))])
	for i := range out {
		n := math.Min(MinuteSeconds, end-float64(i)*MinuteSeconds)
		out[i].Replicas /= n
		out[i].Serving /= n
		out[i].Need /= n
	}
	return out
}

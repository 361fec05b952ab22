// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"math"
	"slices"
)

// Result is what one contender came to in one replay.
type Result struct {
	Name   string `json:"name"`
	Family string `json:"family"`
	Class  Class  `json:"class,omitempty"`

	Scale       float64 `json:"-"`                 // requests for one of the recording
	Requests    int     `json:"requests"`          // without the hopeless
	Hopeless    int     `json:"hopeless"`          // would miss the TTFT limit on an idle replica
	Violations  float64 `json:"violationsPercent"` // of the requests, over a limit or given up
	Late        float64 `json:"ttftPercent"`       // over the TTFT limit
	Slow        float64 `json:"itlPercent"`        // over the ITL limit
	GaveUp      float64 `json:"gaveUpPercent"`
	GPUHours    float64 `json:"gpuHours"` // from a node taking the pod to its end
	Under       float64 `json:"underPercent"`
	Over        float64 `json:"overPercent"` // of the time, serving less or more than is needed
	Overshoot   float64 `json:"overshoot"`   // most replicas ÷ most needed
	Turns       float64 `json:"turnsPerHour"`
	Killed      int     `json:"startingKilled"`
	Cascades    int     `json:"cascades"`
	Reaction    float64 `json:"reactionSeconds"` // mean, from a need above what is asked for to a scale-up; NaN-free: 0 if there was none
	PeakNeed    float64 `json:"peakNeed"`
	ReplicasMax int     `json:"replicasMax"`

	Rules  map[string]int `json:"rules,omitempty"` // ours: how often each rule had the last word
	Points []Point        `json:"points,omitempty"`
}

func (c *cluster) result(r *replay, who *Contender, scaler autoscaler) Result {
	s := &c.stats
	hours := s.seconds / 3600
	// What was never answered was not answered in time.
	lost := s.requests - s.ended
	percent := func(n int) float64 { return 100 * float64(n) / math.Max(1, float64(s.requests)) }
	out := Result{
		Name: who.Name, Family: who.Family, Class: who.Class,
		Scale: r.arrivals.factor, Requests: s.requests, Hopeless: s.hopeless, Violations: percent(s.violations + lost),
		Late: percent(s.late), Slow: percent(s.slow), GaveUp: percent(s.gaveUp + lost),
		GPUHours: s.gpuSeconds / 3600, Under: 100 * s.under / s.seconds, Over: 100 * s.over / s.seconds,
		Overshoot: float64(s.most) / math.Max(1, math.Ceil(r.peak)), Turns: float64(s.turns) / hours,
		Killed: s.killed, Cascades: s.cascades, PeakNeed: r.peak, ReplicasMax: s.most,
		Points: slices.Clone(s.points[:min(len(s.points), int(math.Ceil((s.warm+s.seconds)/pointSeconds)))]),
	}
	if s.reactions > 0 {
		out.Reaction = s.reactionSum / s.reactions
	}
	for i := range out.Points {
		n := math.Min(pointSeconds, s.warm+s.seconds-float64(i)*pointSeconds)
		out.Points[i].Replicas /= n
		out.Points[i].Serving /= n
		out.Points[i].Need /= n
	}
	if o, ok := scaler.(*ours); ok {
		out.Rules = map[string]int{}
		for rule, n := range o.rules {
			out.Rules[string(rule)] = n
		}
	}
	return out
}

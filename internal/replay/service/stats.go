// SPDX-License-Identifier: Apache-2.0

package service

import "math"

// stats counts the outcome of a replay. It is the observer of the replicas.
type stats struct {
	cfg      *Config
	highNeed []float64 // highest need near each bin

	requests, ended      int
	late, slow, gaveUp   int
	infeasible           int
	violations           int
	gpuSeconds           float64
	under, over, seconds float64
	startsDeleted        int
	cascades             int
	turns, direction     int
	mostReplicas         int
	shortSince           float64 // since when the need exceeds the replicas; 0: it does not
	reactions            int
	reactionSeconds      float64

	minutes []Minute
}

// Minute is one minute of a replay.
type Minute struct {
	Arrived    int     `json:"arrived"`
	Violations int     `json:"violations"` // of the requests that arrived in the minute
	Replicas   float64 `json:"replicas"`   // mean of spec.replicas
	Serving    float64 `json:"serving"`    // mean of the ready pods
	Need       float64 `json:"need"`       // mean of the replicas that the load needs
}

// MinuteSeconds is the duration of a Minute.
const MinuteSeconds = 60

// cascadeVicinity is the time around an increase, in seconds, in which the highest need is
// taken to judge it: a start and a stabilisation window.
const cascadeVicinity = 900

func newStats(cfg *Config) stats {
	return stats{
		cfg:      cfg,
		highNeed: movingMax(cfg.Need, cascadeVicinity/NeedSeconds),
		minutes:  make([]Minute, int(math.Ceil(cfg.Seconds/MinuteSeconds))+1),
	}
}

// movingMax returns the maximum of x within reach elements of each element.
func movingMax(x []float64, reach int) []float64 {
	out := make([]float64, len(x))
	for i := range x {
		for k := max(0, i-reach); k < min(len(x), i+reach+1); k++ {
			out[i] = max(out[i], x[k])
		}
	}
	return out
}

func (s *stats) minute(at float64) *Minute {
	return &s.minutes[min(max(0, int(at/MinuteSeconds)), len(s.minutes)-1)]
}

func (s *stats) arrived(at float64) {
	s.minute(at).Arrived++
	if at >= s.cfg.Warmup {
		s.requests++
	}
}

func (s *stats) infeasibleArrived(at float64) {
	if at >= s.cfg.Warmup {
		s.infeasible++
	}
}

// completed implements observer.
func (s *stats) completed(at, ttft, itl float64) {
	late, slow := ttft > s.cfg.Model.TTFTLimit, itl > s.cfg.Model.ITLLimit || s.cfg.OneTokenMisses && itl == 0
	if late || slow {
		s.minute(at).Violations++
	}
	if at < s.cfg.Warmup {
		return
	}
	s.ended++
	if late {
		s.late++
	}
	if slow {
		s.slow++
	}
	if late || slow {
		s.violations++
	}
}

// abandoned implements observer.
func (s *stats) abandoned(at float64) {
	s.minute(at).Violations++
	if at >= s.cfg.Warmup {
		s.ended++
		s.gaveUp++
		s.violations++
	}
}

// startingDeleted counts a pod that is deleted while it starts.
func (s *stats) startingDeleted(now float64) {
	if now >= s.cfg.Warmup {
		s.startsDeleted++
	}
}

func (s *stats) bin(now float64) int { return min(int(now/NeedSeconds), len(s.cfg.Need)-1) }

// endSecond counts the state at the end of a second.
func (s *stats) endSecond(d *Deployment) {
	now := float64(d.now)
	need := s.cfg.Need[s.bin(now)]
	m := s.minute(now - 1)
	m.Replicas += float64(d.replicas)
	m.Serving += float64(len(d.ready))
	m.Need += need
	if now <= s.cfg.Warmup {
		return
	}
	withNode := 0
	for _, p := range d.pods {
		if p.Phase != Unschedulable {
			withNode++
		}
	}
	s.seconds++
	s.gpuSeconds += float64(withNode) * float64(s.cfg.Model.GPUs)
	need = math.Ceil(need)
	switch serving := float64(len(d.ready)); {
	case serving < need:
		s.under++
	case serving > need:
		s.over++
	}
	s.mostReplicas = max(s.mostReplicas, d.replicas)
	switch {
	case need <= float64(d.replicas):
		s.shortSince = 0
	case s.shortSince == 0:
		s.shortSince = now
	}
}

// scaled counts a change of the replicas before it is applied.
func (s *stats) scaled(d *Deployment, replicas, starting int) {
	now := float64(d.now)
	if now < s.cfg.Warmup {
		return
	}
	direction := 1
	if replicas < d.replicas {
		direction = -1
	}
	if s.direction != 0 && direction != s.direction {
		s.turns++
	}
	s.direction = direction
	if direction < 0 {
		return
	}
	if s.shortSince > 0 {
		s.reactions++
		s.reactionSeconds += now - s.shortSince
		s.shortSince = 0
	}
	limit := 1.5 * math.Ceil(s.highNeed[s.bin(now)])
	if starting > 0 && float64(replicas) > limit && float64(d.replicas) <= limit {
		s.cascades++
	}
}

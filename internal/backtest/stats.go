// SPDX-License-Identifier: Apache-2.0

package backtest

import "math"

// stats counts what a run comes to.
type stats struct {
	ttft, itl float64 // limits
	gpus      float64
	width     float64   // of need's bins
	need      []float64 // replicas, by bin
	high      []float64 // the most of need around each bin

	warm                   float64 // what happens before is not counted
	requests, ended        int
	late, slow, gaveUp     int
	hopeless               int
	violations             int
	gpuSeconds             float64
	under, over, seconds   float64
	killed, cascades       int
	turns, direction, ups  int
	most                   int
	short                  float64 // since when more is needed than is asked for; 0: not
	reactions, reactionSum float64

	points []Point
}

// Point is one minute of a run.
type Point struct {
	Arrived    int     `json:"arrived"`
	Violations int     `json:"violations"` // of the requests that arrived in it
	Replicas   float64 `json:"replicas"`   // asked for, mean
	Serving    float64 `json:"serving"`    // mean
	Need       float64 `json:"need"`       // replicas that the load asks for, mean
}

const pointSeconds = 60

// vicinity is how far around a moment the need counts when it is judged whether
// the replicas were out of all proportion: a start-up and a stabilisation window.
const vicinity = 900

func (s *stats) begin(cfg *Config, need []float64) {
	s.ttft, s.itl, s.gpus = cfg.Model.TTFTLimit, cfg.Model.ITLLimit, float64(cfg.Model.GPUs)
	s.need, s.width, s.warm = need, needSeconds, cfg.Warmup
	s.high = highest(need, int(vicinity/needSeconds))
	s.points = make([]Point, int(math.Ceil(cfg.Seconds/pointSeconds))+1)
}

// highest is the most of x within reach bins of each bin.
func highest(x []float64, reach int) []float64 {
	out := make([]float64, len(x))
	for i := range x {
		for k := max(0, i-reach); k < min(len(x), i+reach+1); k++ {
			out[i] = max(out[i], x[k])
		}
	}
	return out
}

func (s *stats) point(at float64) *Point {
	return &s.points[min(max(0, int(at/pointSeconds)), len(s.points)-1)]
}

func (s *stats) arrived(at float64) {
	s.point(at).Arrived++
	if at >= s.warm {
		s.requests++
	}
}

func (s *stats) done(at, ttft, itl float64) {
	if at < s.warm {
		if ttft > s.ttft || itl > s.itl {
			s.point(at).Violations++
		}
		return
	}
	s.ended++
	if ttft > s.ttft {
		s.late++
	}
	if itl > s.itl {
		s.slow++
	}
	if ttft > s.ttft || itl > s.itl {
		s.violations++
		s.point(at).Violations++
	}
}

func (s *stats) dropped(at float64) {
	s.point(at).Violations++
	if at >= s.warm {
		s.ended++
		s.gaveUp++
		s.violations++
	}
}

// gone takes note of a starting pod that is deleted.
func (s *stats) gone(now float64) {
	if now >= s.warm {
		s.killed++
	}
}

func (s *stats) bin(now float64) int { return min(int(now/s.width), len(s.need)-1) }

// second takes note of the state after a whole second.
func (s *stats) second(c *cluster) {
	now := float64(c.now)
	p := s.point(now - 1)
	p.Replicas += float64(c.spec)
	p.Serving += float64(len(c.ready))
	p.Need += s.need[s.bin(now)]
	if now <= s.warm {
		return
	}
	held := 0
	for _, p := range c.pods {
		if p.phase != waiting {
			held++
		}
	}
	s.seconds++
	s.gpuSeconds += float64(held) * s.gpus
	need, serve := math.Ceil(s.need[s.bin(now)]), float64(len(c.ready))
	switch {
	case serve < need:
		s.under++
	case serve > need:
		s.over++
	}
	s.most = max(s.most, c.spec)
	switch {
	case need <= float64(c.spec):
		s.short = 0
	case s.short == 0:
		s.short = now
	}
}

// scaled takes note of a change of the replicas that is about to be made.
func (s *stats) scaled(c *cluster, want, starting int) {
	if float64(c.now) < s.warm {
		return
	}
	turn := 1
	if want < c.spec {
		turn = -1
	}
	if s.direction != 0 && turn != s.direction {
		s.turns++
	}
	s.direction = turn
	if turn < 0 {
		return
	}
	s.ups++
	now := float64(c.now)
	if s.short > 0 {
		s.reactions++
		s.reactionSum += now - s.short
		s.short = 0
	}
	limit := 1.5 * math.Ceil(s.high[s.bin(now)])
	if starting > 0 && float64(want) > limit && float64(c.spec) <= limit {
		s.cascades++
	}
}

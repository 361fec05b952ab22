// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// Search recommends a policy for a recorded load: it replays some twenty policies, and prints the best one as a
// GPUAutoscaler, with the results of the others as comments.
type Search struct {
	study      *Study
	candidates []*candidate
	allowed    float64 // percent
}

// candidate is a policy that is tried.
type candidate struct {
	Signal string  // one of the constants below
	Target float64 // per replica; for onLatency the objective in percent
	Limit  float64 // for onLatency: between tokens, in milliseconds
	First  float64 // for onLatency: to the first token, in seconds
	Window int     // scale-down stabilisation, in seconds; 0: the plan's own
	Min    int
	Max    int

	replays              []Result // one of each replay
	violations, gpuHours float64  // means over the replays
	mostReplicas         int      // of all replays
	leastNeed            float64  // replicas, the lowest mean of a minute
}

// The signals that are tried. An objective learns its plan. Requests need no latency metrics,
// and SM activity is available for any server.
const (
	onLatency  = "an objective"
	onRequests = "requests running and waiting"
	onSM       = "SM activity"
)

// maxReplicas is the maximum during the search. No load reaches it.
const maxReplicas = 1000

// newCandidates returns the candidates for latency limits in seconds, between tokens and to
// the first token, and for the percentage of the requests that may miss them.
func newCandidates(itl, first, allowedPercent float64) (out []*candidate) {
	for _, x := range []struct {
		signal  string
		targets []float64
		windows []int
	}{
		{onLatency, objectives(allowedPercent), []int{0}},
		{onRequests, []float64{3, 4, 6, 8, 12, 16}, []int{300, 900, 1800}},
		{onSM, []float64{0.4, 0.5, 0.6, 0.7}, []int{300, 900, 1800}},
	} {
		for _, target := range x.targets {
			for _, window := range x.windows {
				c := &candidate{Signal: x.signal, Target: target, Window: window, Min: 1, Max: maxReplicas}
				if x.signal == onLatency {
					c.Limit, c.First = oneDecimal(1000*itl), first
				}
				out = append(out, c)
			}
		}
	}
	return out
}

// objectives returns the objectives that are tried, in percent: half, all and twice of the
// allowed misses, within the API's bounds.
func objectives(allowedPercent float64) (out []float64) {
	for _, factor := range []float64{0.5, 1, 2} {
		percent := math.Round(100*min(max(100-factor*allowedPercent, 50), 99.99)) / 100
		if !slices.Contains(out, percent) {
			out = append(out, percent)
		}
	}
	return out
}

// oneDecimal rounds to one decimal.
func oneDecimal(x float64) float64 { return math.Round(10*x) / 10 }

// NewSearch prepares a study that replays the candidates for an objective, of which this percentage
// of the requests may miss the limits. Those are of the study's first model.
func NewSearch(s *Study, allowedPercent float64) (*Search, error) {
	if len(s.Models) == 0 || len(s.Startups) == 0 {
		return nil, errors.New("advise: the study has no model or no start-up time")
	}
	if s.High == 0 {
		s.Min, s.Max = 1, maxReplicas
	}
	search := &Search{study: s, candidates: newCandidates(s.Models[0].ITLLimit, s.Models[0].TTFTLimit, allowedPercent), allowed: allowedPercent}
	s.Ours, s.Peers, s.References, s.KeepMinutes = nil, nil, nil, true
	for i, c := range search.candidates {
		text, err := c.yaml(nil)
		if err != nil {
			return nil, err
		}
		p, err := policy.Parse("candidate", text)
		if err != nil {
			return nil, err
		}
		s.Ours = append(s.Ours, contender.NewOurs(fmt.Sprint(i), p[0].Compiled))
	}
	return search, nil
}

// maxFactor is the recommended maximum ÷ the most replicas of the replays. The maximum
// limits mistakes, not the load.
const maxFactor = 1.5

// margin is the share of the allowed misses that the recommended policy may have: the next
// load is another one.
const margin = 0.8

// Recommend returns the best policy as YAML, from the cases of the study: the cheapest that
// keeps the objective with a margin. If there is none, it is the policy that misses the
// fewest.
func (s *Search) Recommend(cases []Case) ([]byte, error) {
	for i, c := range s.candidates {
		for k := range cases {
			c.replays = append(c.replays, cases[k].Ours[i])
		}
		c.count()
	}
	sorted := slices.Clone(s.candidates)
	slices.SortFunc(sorted, func(a, b *candidate) int { return a.compare(b, margin*s.allowed) })
	best := sorted[0]
	best.Min, best.Max = max(1, int(math.Floor(best.leastNeed))), int(math.Ceil(maxFactor*float64(best.mostReplicas)))
	text, err := best.yaml(reasons(best, sorted[1:]))
	if err != nil {
		return nil, err
	}
	return append([]byte(s.summary(cases, best)), text...), nil
}

// outOfSample counts the replays that keep the objective under the policy that would have
// been chosen from the others.
func (s *Search) outOfSample(replays int) (kept int) {
	for k := range replays {
		best := slices.MinFunc(s.candidates, func(a, b *candidate) int { return a.without(k).compare(b.without(k), margin*s.allowed) })
		if best.replays[k].Violations <= s.allowed {
			kept++
		}
	}
	return kept
}

// without is the candidate without its k-th replay.
func (c *candidate) without(k int) *candidate {
	out := &candidate{replays: slices.Delete(slices.Clone(c.replays), k, k+1)}
	out.count()
	return out
}

// count computes the means and extremes of the replays.
func (c *candidate) count() {
	n := float64(len(c.replays))
	c.violations, c.gpuHours, c.mostReplicas, c.leastNeed = 0, 0, 0, math.Inf(1)
	for i := range c.replays {
		r := &c.replays[i]
		c.violations += r.Violations / n
		c.gpuHours += r.GPUHours / n
		c.mostReplicas = max(c.mostReplicas, r.ReplicasMax)
		for _, m := range r.Minutes {
			c.leastNeed = min(c.leastNeed, m.Need)
		}
	}
}

// compare sorts better candidates first: those that meet the objective by cost, then the
// others by violations.
func (c *candidate) compare(d *candidate, allowedPercent float64) int {
	misses := func(x *candidate) int {
		if x.violations <= allowedPercent {
			return 0
		}
		return 1
	}
	if misses(c) == 1 && misses(d) == 1 {
		return cmp.Or(cmp.Compare(c.violations, d.violations), cmp.Compare(c.gpuHours, d.gpuHours))
	}
	return cmp.Or(cmp.Compare(misses(c), misses(d)), cmp.Compare(c.gpuHours, d.gpuHours), cmp.Compare(c.violations, d.violations))
}

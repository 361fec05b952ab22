// SPDX-License-Identifier: Apache-2.0

// Package advise recommends a policy for a recorded load. It replays some twenty policies
// and prints the best one as a GPUAutoscaler, with the results of the others as comments.
package advise

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gpupilot/gpupilot/internal/replay/backtest"
	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// Search is a search for the best policy.
type Search struct {
	study      *backtest.Study
	candidates []*candidate
}

// candidate is a policy that is tried.
type candidate struct {
	Signal string  // one of the constants below
	Target float64 // per replica; for onLatency the limit between tokens, in milliseconds
	First  float64 // for onLatency: the limit of the time to the first token, in seconds
	Window int     // scale-down stabilisation, in seconds; 0: the default
	Min    int
	Max    int

	violations, gpuHours float64 // means over the replays
	mostReplicas         int     // of all replays
	leastNeed            float64 // replicas, the lowest mean of a minute
}

// The signals that are tried. Requests are the better signal if the server reports them,
// and better still with a latency limit. SM activity is available for any server.
const (
	onLatency  = "requests and the latency that they take"
	onRequests = "requests running and waiting"
	onSM       = "SM activity"
)

// maxReplicas is the maximum during the search. No load reaches it.
const maxReplicas = 1000

// newCandidates returns the candidates for latency limits in seconds, between tokens and to
// the first token. A policy with a lower limit misses the given limit less often.
func newCandidates(itl, first float64) (out []*candidate) {
	for _, x := range []struct {
		signal  string
		targets []float64
	}{
		{onLatency, []float64{oneDecimal(1000 * itl), oneDecimal(800 * itl), oneDecimal(650 * itl)}},
		{onRequests, []float64{3, 4, 6, 8, 12, 16}},
		{onSM, []float64{0.4, 0.5, 0.6, 0.7}},
	} {
		for _, target := range x.targets {
			for _, window := range []int{0, 300} {
				out = append(out, &candidate{Signal: x.signal, Target: target, First: first, Window: window, Min: 1, Max: maxReplicas})
			}
		}
	}
	return out
}

// oneDecimal rounds to one decimal.
func oneDecimal(x float64) float64 { return math.Round(10*x) / 10 }

// New prepares a study that replays the candidates. The limits are those of its first
// model.
func New(s *backtest.Study) (*Search, error) {
	if len(s.Models) == 0 || len(s.Startups) == 0 {
		return nil, errors.New("advise: the study has no model or no start-up time")
	}
	if s.High == 0 {
		s.Min, s.Max = 1, maxReplicas
	}
	search := &Search{study: s, candidates: newCandidates(s.Models[0].ITLLimit, s.Models[0].TTFTLimit)}
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

// Recommend returns the best policy as YAML, from the cases of the study: the cheapest that
// misses at most this percentage of the requests. If there is none, it is the policy that
// misses the fewest.
func (s *Search) Recommend(cases []backtest.Case, allowedPercent float64) ([]byte, error) {
	sorted := slices.Clone(s.candidates)
	for i, c := range sorted {
		c.add(cases, i)
	}
	slices.SortFunc(sorted, func(a, b *candidate) int { return a.compare(b, allowedPercent) })
	best := sorted[0]
	best.Min, best.Max = max(1, int(math.Floor(best.leastNeed))), int(math.Ceil(maxFactor*float64(best.mostReplicas)))
	text, err := best.yaml(reasons(best, sorted[1:]))
	if err != nil {
		return nil, err
	}
	return append([]byte(s.summary(cases, best, allowedPercent)), text...), nil
}

// add sums the results of the candidate, which is the i-th policy of the study.
func (c *candidate) add(cases []backtest.Case, i int) {
	n := float64(len(cases))
	c.leastNeed = math.Inf(1)
	for k := range cases {
		r := &cases[k].Ours[i]
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

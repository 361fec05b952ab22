// SPDX-License-Identifier: Apache-2.0

package service

import (
	"math"
	"math/rand/v2"
	"sync"

	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

// NeedSeconds is the width of the time bins for which the needed replicas are known.
const NeedSeconds = 15

// Capacity returns the requests/s of this size that a replica serves within its limits. At
// this rate sharePercent more of the requests miss a limit than on idle replicas, with
// Poisson arrivals of random sizes around these means.
func (m *Model) Capacity(prompt, output float64) float64 {
	return NewCapacities(m).at(prompt, output)
}

// Capacities caches the capacities of a model. It is safe for concurrent use.
//
// A capacity is the even capacity times the share of it that random load allows. The share
// changes slowly with the size of requests, so it is measured once per octave.
type Capacities struct {
	m     *Model
	mu    sync.Mutex
	even  map[[2]int]float64
	share map[[2]int]float64
}

// NewCapacities returns an empty cache.
func NewCapacities(m *Model) *Capacities {
	return &Capacities{m: m, even: map[[2]int]float64{}, share: map[[2]int]float64{}}
}

func (c *Capacities) at(prompt, output float64) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	fine, coarse := octave(prompt, output, 32), octave(prompt, output, 1)
	even, ok := c.even[fine]
	if !ok {
		even = c.m.evenCapacity(math.Exp2(float64(fine[0])/32), math.Exp2(float64(fine[1])/32))
		c.even[fine] = even
	}
	share, ok := c.share[coarse]
	if !ok {
		share = c.m.randomShare(math.Exp2(float64(coarse[0])), math.Exp2(float64(coarse[1])))
		c.share[coarse] = share
	}
	return even * share
}

// Need returns the replicas that the load of each bin needs, as a fraction.
func (c *Capacities) Need(load *trace.Sums) []float64 {
	out := make([]float64, len(load.Bins))
	for i, b := range load.Bins {
		if n := b.Requests; n > 0 {
			out[i] = n / load.Width / c.at(b.Prompt/n, b.Output/n)
		}
	}
	return out
}

// octave returns the cell of a request size in a logarithmic grid with this many cells per
// octave.
func octave(prompt, output, cells float64) [2]int {
	return [2]int{int(math.Round(cells * math.Log2(max(1, prompt)))), int(math.Round(cells * math.Log2(max(1, output))))}
}

// The measurement in randomShare.
const (
	shareReplicas = 4
	shareRequests = 4000
	sharePercent  = 1.0 // percentage points
)

// randomShare returns the share of the even capacity at which sharePercent more of the
// requests miss a limit.
func (m *Model) randomShare(prompt, output float64) float64 {
	even := m.evenCapacity(prompt, output)
	allowed := m.missedPercent(0.02*even, prompt, output) + sharePercent
	low, high := 0.02, 1.2
	for range 7 {
		mid := (low + high) / 2
		if m.missedPercent(mid*even, prompt, output) <= allowed {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// missedPercent simulates the percentage of requests that miss a limit at this many
// requests/s per replica.
func (m *Model) missedPercent(rate, prompt, output float64) float64 {
	rng := rand.New(rand.NewPCG(7, 11))
	missed := missCounter{m: m}
	replicas := make([]replica, shareReplicas)
	for i := range replicas {
		replicas[i] = replica{m: m, patience: math.Inf(1)}
	}
	at := 0.0
	for range shareRequests {
		at += rng.ExpFloat64() / rate / shareReplicas
		q := trace.Request{At: at}
		q.Prompt, q.Output = trace.Tokens(rng, prompt, output)
		if !m.Feasible(q.Prompt) {
			continue
		}
		a, b := &replicas[rng.IntN(shareReplicas)], &replicas[rng.IntN(shareReplicas)]
		a.advance(at, &missed)
		b.advance(at, &missed)
		if b.inFlight() < a.inFlight() {
			a = b
		}
		a.add(q, &missed)
	}
	for i := range replicas {
		replicas[i].advance(at+3600, &missed)
	}
	return 100 * float64(missed.missed) / math.Max(1, float64(missed.ended))
}

// missCounter counts the requests that missed a limit.
type missCounter struct {
	m             *Model
	ended, missed int
}

func (c *missCounter) completed(_, ttft, itl float64) {
	c.ended++
	if ttft > c.m.TTFTLimit || itl > c.m.ITLLimit {
		c.missed++
	}
}

func (c *missCounter) abandoned(float64) { c.ended++; c.missed++ }

// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"math"
	"math/rand/v2"
	"sync"
)

// Capacity is the requests/s of this size that a replica serves within its
// limits: at which, among a few replicas and with requests that come at random
// and of random sizes around these means, one percentage point more of them
// miss a limit than on replicas with nothing else to do.
func (m *Model) Capacity(prompt, output float64) float64 {
	return newCapacities(m).of(prompt, output)
}

// capacities remembers how far random loads stay below even ones. That share
// changes slowly with the size, so one measurement for each octave will do.
type capacities struct {
	m     *Model
	mu    sync.Mutex
	even  map[[2]int]float64
	share map[[2]int]float64
}

func newCapacities(m *Model) *capacities {
	return &capacities{m: m, even: map[[2]int]float64{}, share: map[[2]int]float64{}}
}

func (c *capacities) of(prompt, output float64) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	fine, coarse := octave(prompt, output, 32), octave(prompt, output, 1)
	even, ok := c.even[fine]
	if !ok {
		even = c.m.even(math.Exp2(float64(fine[0])/32), math.Exp2(float64(fine[1])/32))
		c.even[fine] = even
	}
	share, ok := c.share[coarse]
	if !ok {
		share = c.m.randomShare(math.Exp2(float64(coarse[0])), math.Exp2(float64(coarse[1])))
		c.share[coarse] = share
	}
	return even * share
}

// octave is the cell of a size, with so many cells to a doubling.
func octave(prompt, output, cells float64) [2]int {
	return [2]int{int(math.Round(cells * math.Log2(max(1, prompt)))), int(math.Round(cells * math.Log2(max(1, output))))}
}

// What randomShare measures with.
const (
	shareReplicas = 4
	shareRequests = 4000
	sharePercent  = 1.0
)

// randomShare is the share of the even capacity at which random load misses
// sharePercent more limits.
func (m *Model) randomShare(prompt, output float64) float64 {
	even := m.even(prompt, output)
	allowed := m.missed(0.02*even, prompt, output) + sharePercent
	low, high := 0.02, 1.2
	for range 7 {
		mid := (low + high) / 2
		if m.missed(mid*even, prompt, output) <= allowed {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// missed is the percentage of requests that miss a limit when each replica is
// sent so many a second.
func (m *Model) missed(rate, prompt, output float64) float64 {
	rng := rand.New(rand.NewPCG(7, 11))
	var s tallySheet
	s.m = m
	fleet := make([]replica, shareReplicas)
	for i := range fleet {
		fleet[i] = replica{m: m, patience: never}
	}
	at := 0.0
	for range shareRequests {
		at += rng.ExpFloat64() / rate / shareReplicas
		q := Request{At: at, Prompt: tokens(rng, prompt, promptSigma), Output: tokens(rng, output, outputSigma)}
		if m.hopeless(q.Prompt) {
			continue
		}
		a, b := &fleet[rng.IntN(shareReplicas)], &fleet[rng.IntN(shareReplicas)]
		a.advance(at, &s)
		b.advance(at, &s)
		if b.load() < a.load() {
			a = b
		}
		a.add(q, &s)
	}
	for i := range fleet {
		fleet[i].advance(at+3600, &s)
	}
	return 100 * float64(s.missed) / math.Max(1, float64(s.ended))
}

// tallySheet counts who missed a limit.
type tallySheet struct {
	m             *Model
	ended, missed int
}

func (s *tallySheet) done(_, ttft, itl float64) {
	s.ended++
	if ttft > s.m.TTFTLimit || itl > s.m.ITLLimit {
		s.missed++
	}
}

func (s *tallySheet) dropped(float64) { s.ended++; s.missed++ }

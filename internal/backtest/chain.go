// SPDX-License-Identifier: Apache-2.0

package backtest

import "math/rand/v2"

// Chain is how a value comes from a pod to an autoscaler: each stage runs every
// so many seconds and sees what the one before it last left. 0 and 1: at once.
type Chain struct {
	Name                         string
	Collect, Scrape, Rule, Delay int // seconds
	Sync                         int // the autoscaler's own

	phase [4]int
}

// The chains with their defaults (dcgm-exporter collects every 30 s; the
// Prometheus operator scrapes and evaluates every 30 s, the dcgm chart every 15;
// the HPA syncs every 15 s).
func classicGPU() Chain { return Chain{Name: "classic", Collect: 30, Scrape: 15, Sync: 15} }

func classicRule() Chain { return Chain{Name: "classic", Collect: 30, Scrape: 15, Rule: 30, Sync: 15} }
func classicPods() Chain { return Chain{Name: "classic", Scrape: 30, Sync: 15} }
func direct() Chain      { return Chain{Name: "direct", Delay: 1, Sync: 15} }

// at gives the stages their phases.
func (c Chain) seeded(seed uint64) Chain {
	rng := rand.New(rand.NewPCG(seed, 0xc4a17))
	for i := range c.phase {
		c.phase[i] = rng.IntN(60)
	}
	return c
}

// due says whether the autoscaler syncs now.
func (c *Chain) due(now int) bool { return floorTo(now, c.Sync, c.phase[0]) == now }

// measured is the second at which what is seen now was measured.
func (c *Chain) measured(now int) int {
	t := floorTo(now-c.Delay, c.Rule, c.phase[1])
	t = floorTo(t, c.Scrape, c.phase[2])
	return floorTo(t, c.Collect, c.phase[3])
}

// floorTo is the last time at or before t at which a stage ran.
func floorTo(t, period, phase int) int {
	if period <= 1 {
		return t
	}
	return t - ((t-phase)%period+period)%period
}

// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/scale/peers"
)

// llmdPeers are the guides of llm-d for KEDA with metrics of its endpoint picker
// (llm-d/llm-d, guides/workload-autoscaling, October 2026), and a ScaledObject with three
// triggers. KEDA and the HPA read each 15 s. The guides' own minimum and maximum give way to
// those of the replay.
func llmdPeers() []named {
	return []named{
		{name: "llm-d-queue", period: 15, rule: newLLMDQueue},
		{name: "llm-d-token", period: 15, rule: newLLMDToken},
		{name: "llm-d-slo", period: 15, rates: true, rule: newLLMDSLO},
		// The trigger of vLLM's production stack (5 waiting) with llm-d's of running requests
		// and of the KV cache.
		{name: "keda-triggers", period: 15, rule: func(r *Replay) rule {
			return newHPARule(r, peers.DefaultUp(), peers.DefaultDown(),
				trigger{target: 5, value: func(f *fleet) float64 { return f.waiting }},
				trigger{target: 16, value: func(f *fleet) float64 { return f.running }},
				trigger{target: 0.8, value: func(f *fleet) float64 { return f.kv }})
		}},
	}
}

// newLLMDQueue is the guide keda-epp: one queued request, or 16 running ones, per replica; up
// and down by 100 % in 15 s, down after 300 s. Here requests queue in the servers, not in
// the endpoint picker.
func newLLMDQueue(r *Replay) rule {
	up := peers.Rules{Tolerance: 0.1, Policies: []peers.RatePolicy{{Percent: true, Value: 100, Period: 15}}}
	return newHPARule(r, up, peers.DefaultDown(),
		trigger{target: 1, value: func(f *fleet) float64 { return f.waiting }},
		trigger{target: 16, value: func(f *fleet) float64 { return f.running }})
}

// newLLMDToken is the guide token-aware: prompt tokens in flight ÷ the tokens/s that a
// calibrated replica prefills, against 1.5 s; and 0.8 of the KV cache. Up by a pod in 180 s,
// down by a pod in 300 s after 300 s. A prompt is in flight here until it is prefilled.
func newLLMDToken(r *Replay) rule {
	up := peers.Rules{Tolerance: 0.1, Policies: []peers.RatePolicy{{Value: 1, Period: 180}}}
	down := peers.Rules{Tolerance: 0.1, Window: 300, Policies: []peers.RatePolicy{{Value: 1, Period: 300}}}
	return newHPARule(r, up, down,
		trigger{target: 1.5, value: func(f *fleet) float64 { return (f.waitingTokens + f.prefillTokens) / f.model.Prefill }},
		trigger{target: 0.8, value: func(f *fleet) float64 { return f.kv }})
}

// newLLMDSLO is the guide slo-aware: up max(100 %, 4 pods) in 60 s with a window of 30 s, down
// a pod in 120 s with one of 180 s.
func newLLMDSLO(r *Replay) rule {
	s := &latencyStress{}
	up := peers.Rules{Tolerance: 0.1, Window: 30, Policies: []peers.RatePolicy{{Value: 4, Period: 60}, {Percent: true, Value: 100, Period: 60}}}
	down := peers.Rules{Tolerance: 0.1, Window: 180, Policies: []peers.RatePolicy{{Value: 1, Period: 120}}}
	s.hpaRule = newHPARule(r, up, down, trigger{target: 1, value: s.demand})
	return s
}

// latencyStress is the law of the guide slo-aware. Its rules are evaluated each 15 s: the
// 90th percentiles of a minute ÷ their limits, averaged over 45 s.
type latencyStress struct {
	*hpaRule
	first, token []weighted // of the last minute
	stress       [3]float64 // of the last evaluations
	evaluations  int
}

// weighted is a latency in seconds with the number of requests that it counts for.
type weighted struct {
	second        int
	value, weight float64
}

// The constants of the guide.
const (
	stressHigh, stressLow, stressMost = 0.55, 0.40, 2
	stressWindow, stressInterval      = 60, 15 // seconds
	stressQuantile                    = 0.9
)

// watch keeps the means of each server and second. The guide has the histograms of single
// requests; a server ends few requests in a second.
func (s *latencyStress) watch(f *fleet) {
	for _, x := range f.servers {
		if x.FirstTokensPerSecond > 0 {
			s.first = append(s.first, weighted{f.now, float64(x.FirstTokenSeconds), float64(x.FirstTokensPerSecond)})
		}
		if n := x.Values[service.Served]; n > 0 && x.TokenSeconds > 0 {
			s.token = append(s.token, weighted{f.now, float64(x.TokenSeconds), float64(n)})
		}
	}
	if f.now%stressInterval != 0 {
		return
	}
	s.first, s.token = since(s.first, f.now-stressWindow), since(s.token, f.now-stressWindow)
	now := max(quantile(s.first, stressQuantile)/f.model.TTFTLimit, quantile(s.token, stressQuantile)/f.model.ITLLimit)
	s.stress[s.evaluations%len(s.stress)] = min(stressMost, now)
	s.evaluations++
}

// demand is the law: the replicas that bring the stress between its bounds. Replicas that
// are not ready lower it, because the stress is that of the ready ones.
func (s *latencyStress) demand(f *fleet) float64 {
	k := min(s.evaluations, len(s.stress))
	if k == 0 {
		return float64(f.replicas)
	}
	stress := 0.0
	for _, x := range s.stress[:k] {
		stress += x / float64(k)
	}
	n := float64(f.replicas)
	switch readyShare := float64(f.ready()) / math.Max(1, n); {
	case stress > stressHigh:
		return n + max(0, math.Ceil(n*(stress*readyShare/stressHigh-1)))
	case stress < stressLow:
		return n - math.Floor(n*(1-stress/stressLow))
	}
	return n
}

// since drops what is older.
func since(x []weighted, second int) []weighted {
	return slices.DeleteFunc(x, func(w weighted) bool { return w.second <= second })
}

// quantile returns the weighted quantile; 0 without values.
func quantile(x []weighted, q float64) float64 {
	sorted := slices.SortedFunc(slices.Values(x), func(a, b weighted) int { return cmp.Compare(a.value, b.value) })
	total := 0.0
	for _, w := range sorted {
		total += w.weight
	}
	below := 0.0
	for _, w := range sorted {
		if below += w.weight; below >= q*total {
			return w.value
		}
	}
	return 0
}

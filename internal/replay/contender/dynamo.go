// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"math"

	"github.com/gpupilot/gpupilot/internal/replay/service"
)

// dynamoPeers are the loops of NVIDIA Dynamo's Planner with the target sla, for one pool of
// workers (ai-dynamo/dynamo, components/src/dynamo/planner, 1.6, October 2026). Engines push
// their values. The Planner estimates latencies with a model of the engine that it fits
// online; here it knows the engine's formula.
func dynamoPeers() []named {
	return []named{
		{name: "dynamo-load", period: plannerLoadInterval, pushed: true, rates: true, rule: func(*Replay) rule { return &planner{load: true} }},
		{name: "dynamo-predictive", period: plannerLoadInterval, pushed: true, rates: true, rule: func(*Replay) rule { return &planner{predict: true} }},
		{name: "dynamo-hybrid", period: plannerLoadInterval, pushed: true, rates: true, rule: func(*Replay) rule { return &planner{load: true, predict: true} }},
	}
}

// The defaults of the Planner (config/planner_config.py).
const (
	plannerLoadInterval       = 5   // seconds
	plannerThroughputInterval = 180 // seconds
	plannerSensitivity        = 0.8 // of a limit, for scaling down
	plannerMaxChange          = 8   // replicas per predictive decision
	plannerMaxBatches         = 128 // batch sizes that the search for an engine's rate tries
)

// planner has the load loop, the predictive loop, or both. With both, the predictive one is
// a lower bound of the load loop.
type planner struct {
	load, predict bool

	arrivals, promptTokens, firstTokens, outputTokens, completed history
	prompt, output                                               float64 // mean tokens; kept while no request ends
	floor                                                        int     // of the predictive loop
}

func (p *planner) watch(f *fleet) {
	p.arrivals.add(f.now, f.arrivals)
	p.promptTokens.add(f.now, f.promptTokens)
	p.firstTokens.add(f.now, f.firstTokens)
	p.outputTokens.add(f.now, f.outputTokens)
	p.completed.add(f.now, f.completed)
}

func (p *planner) decide(f *fleet) int {
	if p.predict && f.now%plannerThroughputInterval == 0 {
		p.measure(f, plannerThroughputInterval)
		rate := p.arrivals.sum(f.measured, plannerThroughputInterval) / plannerThroughputInterval
		if best := p.bestRate(f.model); best > 0 {
			p.floor = max(1, Ceil(rate/best))
			p.floor = min(max(p.floor, f.replicas-plannerMaxChange), f.replicas+plannerMaxChange)
		}
	}
	if !p.load {
		if p.floor == 0 {
			return f.replicas
		}
		return p.floor
	}
	// It holds while a worker starts, and while the workers that report are not those that
	// it expects.
	if f.starting > 0 || f.ready() != f.replicas || f.ready() == 0 {
		return f.replicas
	}
	p.measure(f, plannerLoadInterval)
	return max(f.replicas+p.step(f), p.floor)
}

// measure sets the mean tokens of the requests of a window.
func (p *planner) measure(f *fleet, window int) {
	if n := p.firstTokens.sum(f.measured, window); n > 0 {
		p.prompt = p.promptTokens.sum(f.measured, window) / n
	}
	if n := p.completed.sum(f.measured, window); n > 0 {
		p.output = p.outputTokens.sum(f.measured, window) / n
	}
}

// step is the load loop: up if all engines exceed a limit, down if none would without one
// of the engines.
func (p *planner) step(f *fleet) int {
	lateAll, slowAll, canShrink := true, true, f.ready() > 1
	n := float64(f.ready())
	chunk, context := p.meanChunk(f), f.model.KV(p.prompt, p.output)
	for _, x := range f.servers {
		batch := float64(x.Values[service.Running])
		lateAll = lateAll && p.firstToken(f.model, float64(x.WaitingTokens), batch) > f.model.TTFTLimit
		slowAll = slowAll && f.model.Iteration(chunk, batch, batch*context) > f.model.ITLLimit
		if canShrink {
			more := n / (n - 1)
			own := p.firstToken(f.model, 0, batch*more)
			queued := p.firstToken(f.model, float64(x.WaitingTokens)*more, batch*more) - own
			all := float64(x.Values[service.Concurrency]) * more
			canShrink = queued < (f.model.TTFTLimit-own)*plannerSensitivity &&
				f.model.Iteration(chunk, all, all*context) < f.model.ITLLimit*plannerSensitivity && float64(x.Values[service.KVUse])*more < 1
		}
	}
	switch {
	case lateAll || slowAll:
		return 1
	case canShrink:
		return -1
	}
	return 0
}

// firstToken estimates the time to the first token of a next request behind these tokens:
// chunks of the engine's budget, each with the decoding batch.
func (p *planner) firstToken(m *service.Model, queued, batch float64) (seconds float64) {
	for rest := queued + m.Fresh(p.prompt); rest > 0; rest -= m.Chunk {
		seconds += m.Iteration(min(rest, m.Chunk), batch, batch*m.KV(p.prompt, p.output))
	}
	return seconds
}

// meanChunk is the mean number of prompt tokens in an iteration of the last seconds.
func (p *planner) meanChunk(f *fleet) float64 {
	prompt := f.model.Fresh(p.promptTokens.sum(f.measured, plannerLoadInterval)) / plannerLoadInterval / math.Max(1, float64(f.ready()))
	iterations, n := 0.0, 0.0 // per second
	for _, x := range f.servers {
		if x.TokenSeconds > 0 {
			iterations, n = iterations+1/float64(x.TokenSeconds), n+1
		}
	}
	if iterations == 0 {
		return 0
	}
	return min(prompt*n/iterations, f.model.Chunk)
}

// bestRate searches the batch sizes for the highest rate of an engine that keeps the limits,
// in requests/s; or the highest of all if none keeps them. An iteration prefills the share
// of the prompts that its decoding batch completes.
func (p *planner) bestRate(m *service.Model) float64 {
	if p.prompt <= 0 || p.output <= 0 {
		return 0
	}
	within, any := 0.0, 0.0
	fresh, context := m.Fresh(p.prompt), m.KV(p.prompt, p.output)
	for b := 1.0; b <= plannerMaxBatches; b++ {
		chunk := b * fresh / p.output
		if chunk > m.Chunk-b && b > 1 {
			break
		}
		itl := m.Iteration(chunk, b, b*context)
		rate := b / (p.output * itl)
		any = max(any, rate)
		if ttft := math.Ceil(fresh/(m.Chunk-b)) * m.Iteration(m.Chunk-b, b, b*context); ttft <= m.TTFTLimit && itl <= m.ITLLimit {
			within = max(within, rate)
		}
	}
	if within > 0 {
		return within
	}
	return any
}

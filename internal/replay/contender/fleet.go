// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"math/rand/v2"
	"slices"

	"github.com/gpupilot/gpupilot/internal/replay/service"
)

// fleet is what an autoscaler of inference servers reads: its own view of the replicas, and
// what the servers report. Rates are over the last second.
type fleet struct {
	now      int // second
	measured int // second of the values: the last scrape
	model    *service.Model

	replicas, starting int // spec.replicas; of the live pods, those that start

	servers []*service.PodReport // that are ready

	running, waiting             float64 // requests
	waitingTokens, prefillTokens float64 // prompt tokens in queues; of running requests, still to prefill
	kv                           float64 // sum of the servers' shares

	arrivals, completed        float64 // requests/s
	promptTokens, outputTokens float64 // per second
	firstTokens                float64 // requests/s
}

// ready returns the number of servers that report.
func (f *fleet) ready() int { return len(f.servers) }

// read reads the deployment, with the servers' values of a second.
func (f *fleet) read(d *service.Deployment, now, measured int) {
	*f = fleet{now: now, measured: measured, model: f.model, servers: f.servers[:0], replicas: d.Replicas()}
	_, f.starting = d.Live()
	s := d.At(measured)
	for _, p := range d.Pods() {
		x := s.Of(p.ID)
		if x == nil || !x.Serving {
			continue
		}
		f.servers = append(f.servers, x)
		f.running += float64(x.Values[service.Running])
		f.waiting += float64(x.Values[service.Waiting])
		f.waitingTokens += float64(x.WaitingTokens)
		f.prefillTokens += float64(x.PrefillTokens)
		f.kv += float64(x.Values[service.KVUse])
		f.arrivals += float64(x.ArrivalsPerSecond)
		f.completed += float64(x.Values[service.Served])
		f.promptTokens += float64(x.PromptTokensPerSecond)
		f.outputTokens += float64(x.OutputTokensPerSecond)
		f.firstTokens += float64(x.FirstTokensPerSecond)
	}
}

// rule decides from what servers report.
type rule interface {
	// decide returns the wanted replicas, before the minimum and the maximum.
	decide(f *fleet) int
}

// watcher is a rule that also reads the servers each second, for windows of time. Then
// measured is now.
type watcher interface{ watch(f *fleet) }

// peer is a rule as an autoscaler. It decides each period seconds.
type peer struct {
	rule
	period, scrape, phase int
	min, max              int
	fleet                 fleet
}

// Decide implements service.Autoscaler.
func (p *peer) Decide(d *service.Deployment, now int) (int, []string) {
	if w, ok := p.rule.(watcher); ok {
		p.fleet.read(d, now, now)
		w.watch(&p.fleet)
	}
	if now%p.period != 0 {
		return service.Unchanged, nil
	}
	p.fleet.read(d, now, lastRun(now, p.scrape, p.phase))
	return min(max(p.decide(&p.fleet), p.min), p.max), nil
}

// named is a peer with one setting: that of its documentation.
type named struct {
	name   string
	period int // seconds
	// pushed is true if servers push their values, so that no scrape delays them.
	pushed bool
	rates  bool // reads rates of the servers, not only gauges
	rule   func(r *Replay) rule
}

// entry returns the peer as an entry. Prometheus scrapes its values, by the replay's interval.
func (n named) entry() Entry {
	return Entry{
		Name: n.name, Family: Named, Class: OnRequests, Rates: n.rates,
		New: func(r *Replay) (service.Autoscaler, error) {
			p := &peer{rule: n.rule(r), period: n.period, scrape: r.Scrape, min: r.Min, max: r.Max}
			p.fleet.model = r.Model
			if n.pushed {
				p.scrape = 0
			} else if p.scrape > 1 {
				p.phase = rand.New(rand.NewPCG(r.Seed, 0x5c7a9e)).IntN(p.scrape)
			}
			return p, nil
		},
	}
}

// LLMPeers returns the autoscalers that are made for LLM servers, and two simple ones of
// NVIDIA's Planner Gym, each with the setting of its documentation.
func LLMPeers() (out []Entry) {
	for _, n := range slices.Concat(gymPeers(), dynamoPeers(), mpcPeers(), llmdPeers(), aibrixPeers(), rayPeers()) {
		out = append(out, n.entry())
	}
	return out
}

// history keeps the values of the last minutes, one each second.
type history struct{ ring [historySeconds]float64 }

// historySeconds is longer than the longest window and the longest scrape interval.
const historySeconds = 512

func (h *history) add(second int, v float64) { h.ring[second%historySeconds] = v }

// sum returns the sum over the window of this many seconds that ends with a second.
func (h *history) sum(second, window int) (sum float64) {
	for s := max(1, second-window+1); s <= second; s++ {
		sum += h.ring[s%historySeconds]
	}
	return sum
}

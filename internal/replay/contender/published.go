// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"math"

	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/scale/peers"
)

// PublishedPeers returns the settings that guides and samples of projects for LLM servers tell
// people to use, as they are written (read in November 2026). Their minimum and maximum give way
// to those of the replay. KEDA and the HPA read each 15 s.
func PublishedPeers() (out []Entry) {
	for _, s := range publishedHPAs() {
		out = append(out, named{name: s.name, period: 15, rates: s.latency, rule: s.rule}.entry())
	}
	// Cloudera's AI Inference service: Knative with a target of 70 requests per replica.
	out = append(out, Entry{Name: "cloudera-kpa", Family: Published, Class: OnRequests, New: NewKPA(70, 60, 0).New})
	for _, n := range []named{
		// Baseten's default, one request at 70 %, and its engine for LLMs: of 32 requests 40 %.
		{name: "baseten", period: 1, pushed: true, rule: func(*Replay) rule { return &baseten{target: 0.7} }},
		{name: "baseten-llm", period: 1, pushed: true, rule: func(*Replay) rule { return &baseten{target: 32 * 0.4} }},
	} {
		out = append(out, n.entry())
	}
	for i := range out {
		out[i].Family = Published
	}
	return out
}

// publishedHPA is a HorizontalPodAutoscaler, or what KEDA makes one of. Without rules it has the
// defaults.
type publishedHPA struct {
	name     string
	triggers []trigger
	up, down *peers.Rules
	latency  bool // it also asks for the 95th percentile of whole requests
}

func publishedHPAs() []publishedHPA {
	waiting := func(f *fleet) float64 { return f.waiting }
	running := func(f *fleet) float64 { return f.running }
	kv := func(f *fleet) float64 { return f.kv }
	kvMean := func(f *fleet) float64 { return f.kv / max(1, float64(f.ready())) }
	slow := func(window, up, upPeriod, downPeriod int) (*peers.Rules, *peers.Rules) {
		return &peers.Rules{Window: window, Tolerance: 0.1, Policies: []peers.RatePolicy{{Value: up, Period: upPeriod}}},
			&peers.Rules{Window: 300, Tolerance: 0.1, Policies: []peers.RatePolicy{{Value: 1, Period: downPeriod}}}
	}
	awsUp, awsDown := slow(30, 2, 60, 120)
	kaitoUp, kaitoDown := slow(60, 1, 300, 600)
	half := peers.DefaultDown()
	half.Policies = []peers.RatePolicy{{Percent: true, Value: 50, Period: 60}}
	return []publishedHPA{
		// vLLM's production stack: tutorials/20, the same with the rules of autoscaling-keda.rst §7, and
		// tutorials/assets/hpa-10.yaml.
		{name: "production-stack-keda", triggers: []trigger{{target: 5, value: waiting}}},
		{name: "production-stack-custom", triggers: []trigger{{target: 5, value: waiting}}, down: &half},
		{name: "production-stack-hpa", triggers: []trigger{{target: 1, value: waiting, whole: true}}},
		// The EKS user guide. Its second trigger, a percentile of 5 s, is an AverageValue: divided by the replicas.
		{name: "aws-eks", triggers: []trigger{{target: 25, value: waiting}}, up: awsUp, down: awsDown, latency: true},
		{name: "azure-kaito", triggers: []trigger{{target: 10, value: waiting}}, up: kaitoUp, down: kaitoDown},
		// GKE's best practices: a queue of 3 to 5 per pod.
		{name: "gke-queue-3", triggers: []trigger{{target: 3, value: waiting}}},
		{name: "gke-queue-5", triggers: []trigger{{target: 5, value: waiting}}},
		{name: "gke-batch", triggers: []trigger{{share: 0.9, value: running}}},
		// KServe's guide: a Value is not divided by the replicas, although the text says per pod.
		{name: "kserve-prometheus", triggers: []trigger{{target: 2, value: running, whole: true}}},
		{name: "kserve-otel", triggers: []trigger{{target: 4, value: running, whole: true}}},
		// NVIDIA's operator for NIM (its sample llm.yaml), and the setting of its blog.
		{name: "nim-operator", triggers: []trigger{{target: 0.5, value: kvMean, whole: true}}},
		{name: "nim-blog", triggers: []trigger{{target: 0.1, value: kv}}},
	}
}

// rule returns the HPA. Of a batch limit the target is a share.
func (s publishedHPA) rule(r *Replay) rule {
	up, down := peers.DefaultUp(), peers.DefaultDown()
	if s.up != nil {
		up = *s.up
	}
	if s.down != nil {
		down = *s.down
	}
	triggers := make([]trigger, len(s.triggers), len(s.triggers)+1)
	copy(triggers, s.triggers)
	for i := range triggers {
		if t := &triggers[i]; t.share > 0 {
			t.target = t.share * float64(r.Model.MaxSeqs)
		}
	}
	if !s.latency {
		return newHPARule(r, up, down, triggers...)
	}
	l := &requestLatency{}
	l.hpaRule = newHPARule(r, up, down, append(triggers, trigger{target: 5, value: l.p95})...)
	return l
}

// requestLatency is an HPA that asks for the 95th percentile of the requests of the last minute,
// in seconds. As llm-d's law here, it has the means of each server and second.
type requestLatency struct {
	*hpaRule
	ended []weighted
}

func (l *requestLatency) watch(f *fleet) {
	for _, x := range f.servers {
		if n := float64(x.Values[service.Served]); n > 0 {
			tokens := float64(x.OutputTokensPerSecond) / n
			l.ended = append(l.ended, weighted{f.now, float64(x.FirstTokenSeconds) + tokens*float64(x.TokenSeconds), n})
		}
	}
	l.ended = since(l.ended, f.now-stressWindow)
}

func (l *requestLatency) p95(*fleet) float64 { return quantile(l.ended, 0.95) }

// baseten is Baseten's autoscaler: the mean of the requests in replicas and queues over a minute, and
// down when fewer replicas were enough for a while (docs.baseten.co).
type baseten struct {
	target         float64
	recent, wanted []weighted
}

const basetenWindow, basetenDelay = 60, 900 // seconds

func (b *baseten) decide(f *fleet) int {
	b.recent = append(since(b.recent, f.now-basetenWindow), weighted{second: f.now, value: f.running + f.waiting})
	mean := 0.0
	for _, x := range b.recent {
		mean += x.value / float64(len(b.recent))
	}
	return coolDown(&b.wanted, f.now, basetenDelay, math.Ceil(mean/b.target))
}

// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"math"

	"github.com/gpupilot/gpupilot/internal/scale/peers"
)

// aibrixPeers are the strategies APA and KPA of AIBrix's PodAutoscaler with the metric and
// target of its samples, half of the KV cache (vllm-project/aibrix, samples/autoscaling and
// pkg/controller/podautoscaler, October 2026). It reads the pods itself, each 10 s.
func aibrixPeers() []named {
	return []named{
		{name: "aibrix-apa", period: aibrixInterval, pushed: true, rule: func(*Replay) rule { return &aibrixAPA{} }},
		{name: "aibrix-kpa", period: aibrixInterval, pushed: true, rule: func(*Replay) rule { return &aibrixKPA{} }},
	}
}

// AIBrix's defaults, and the settings of its samples.
const (
	aibrixInterval = 10  // seconds between decisions
	aibrixTarget   = 0.5 // of the KV cache
	aibrixMostRate = 2   // most change by one decision, as a factor
	// Of the sample apa.yaml: the window of observation in seconds, and the tolerances. The time before a scale-down
	// is the default.
	aibrixWindow, aibrixCooldown           = 30, 300
	aibrixUpTolerance, aibrixDownTolerance = 0.1, 0.2
	// The KPA's stable window by default, and the delay of a scale-down in the sample kpa.yaml, in seconds.
	aibrixStable, aibrixDelay = 180, 180
)

// aibrixAPA scales in proportion to a mean over a window.
type aibrixAPA struct {
	recent []weighted // value: the mean share of a second
	wanted []weighted // value: replicas
}

func (a *aibrixAPA) watch(f *fleet) {
	if n := f.ready(); n > 0 {
		a.recent = append(since(a.recent, f.now-aibrixWindow), weighted{second: f.now, value: f.kv / float64(n)})
	}
}

// decide has AIBrix's guard (its pull request 2671): pods that start dilute a value above the
// target, and count as at the target below it.
func (a *aibrixAPA) decide(f *fleet) int {
	if len(a.recent) == 0 {
		return f.replicas
	}
	mean := 0.0
	for _, x := range a.recent {
		mean += x.value / float64(len(a.recent))
	}
	n, ready := float64(f.replicas), float64(f.ready())
	if mean > aibrixTarget {
		mean *= min(1, ready/n)
	} else {
		mean = (mean*ready + aibrixTarget*max(0, n-ready)) / max(n, ready)
	}
	wanted := n
	if ratio := mean / aibrixTarget; ratio > 1+aibrixUpTolerance || ratio < 1-aibrixDownTolerance {
		wanted = min(max(math.Ceil(n*ratio), math.Floor(n/aibrixMostRate)), math.Ceil(n*aibrixMostRate))
	}
	return coolDown(&a.wanted, f.now, aibrixCooldown, wanted)
}

// coolDown returns the most wanted replicas of the last seconds.
func coolDown(past *[]weighted, now, seconds int, wanted float64) int {
	*past = append(since(*past, now-seconds), weighted{second: now, value: wanted})
	for _, w := range *past {
		wanted = max(wanted, w.value)
	}
	return int(wanted)
}

// aibrixKPA is Knative's algorithm on the sum of the shares, with AIBrix's change rates.
type aibrixKPA struct {
	model  *peers.KPA
	wanted []weighted
}

func (a *aibrixKPA) watch(f *fleet) {
	if a.model == nil {
		a.model = peers.NewKPA(aibrixTarget, aibrixStable, 0, f.now, f.ready())
	}
	if f.ready() > 0 {
		a.model.Record(f.now, f.kv)
	}
}

func (a *aibrixKPA) decide(f *fleet) int {
	wanted, ok := a.model.Scale(f.now, f.ready())
	if !ok {
		return f.replicas
	}
	return coolDown(&a.wanted, f.now, aibrixDelay, float64(min(wanted, aibrixMostRate*max(1, f.ready()))))
}

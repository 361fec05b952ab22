// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"fmt"

	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/scale/peers"
)

// gymPeers are the simple policies of NVIDIA's Planner Gym with the constants of its
// published match (ai-dynamo/dynamo, gyms/planner-gym/configs/match.sim.agg.all-datasets.yaml,
// October 2026). Both read the number of waiting requests each 15 s.
func gymPeers() []named {
	return []named{
		{name: "gym-reactive", period: 15, rule: func(*Replay) rule { return threshold{up: 4, down: 1} }},
		{name: "gym-keda", period: 15, rule: func(r *Replay) rule {
			return newHPARule(r, peers.DefaultUp(), peers.DefaultDown(), trigger{target: 5, value: func(f *fleet) float64 { return f.waiting }})
		}},
	}
}

// threshold adds a replica while more requests wait than up, and removes one while fewer
// wait than down.
type threshold struct{ up, down float64 }

func (t threshold) decide(f *fleet) int {
	switch {
	case f.waiting > t.up:
		return f.replicas + 1
	case f.waiting < t.down:
		return f.replicas - 1
	}
	return f.replicas
}

// trigger is one trigger of a ScaledObject: an AverageValue of an external metric.
type trigger struct {
	target float64
	value  func(f *fleet) float64 // of all servers
	whole  bool                   // a Value instead: it is not divided by the replicas
	share  float64                // the target is this share of the sequences that a server runs at once; 0: it is target
}

// hpaRule is the HorizontalPodAutoscaler that KEDA makes of a ScaledObject. The trigger
// that wants most replicas counts.
type hpaRule struct {
	model    peers.HPA
	triggers []trigger
	metrics  []peers.Metric
	readings []peers.Reading
	pods     []peers.Pod // that are ready
}

func newHPARule(r *Replay, up, down peers.Rules, triggers ...trigger) *hpaRule {
	h := &hpaRule{
		model: peers.HPA{Min: r.Min, Max: r.Max, Up: up, Down: down}, triggers: triggers,
		readings: make([]peers.Reading, len(triggers)),
	}
	for _, t := range triggers {
		kind := peers.ExternalAverage
		if t.whole {
			kind = peers.ObjectValue
		}
		h.metrics = append(h.metrics, peers.Metric{Kind: kind, MilliTarget: milli(t.target)})
	}
	return h
}

func (h *hpaRule) decide(f *fleet) int {
	h.pods = h.pods[:0]
	for range f.ready() {
		h.pods = append(h.pods, peers.Pod{Ready: true})
	}
	for i, t := range h.triggers {
		h.readings[i] = peers.Reading{Spec: f.replicas, Status: f.replicas, Pods: h.pods, Milli: milli(t.value(f)), HasValue: true}
	}
	return h.model.SyncAll(f.now, h.metrics, h.readings)
}

// Static returns an entry with this many replicas.
func Static(replicas int) Entry {
	return Entry{
		Name: fmt.Sprintf("static %d", replicas), Family: FixedReplicas,
		New: func(r *Replay) (service.Autoscaler, error) { return fixed{min(max(replicas, r.Min), r.Max)}, nil },
	}
}

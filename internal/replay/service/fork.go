// SPDX-License-Identifier: Apache-2.0

package service

import (
	"math/rand/v2"
	"slices"
)

// decision is what some of the autoscalers of a deployment want.
type decision struct {
	replicas    int
	victims     []string
	leave       []string // the pods that are out of the endpoints
	autoscalers []Autoscaler
}

// decide calls the autoscalers and applies their decisions. For each decision that differs
// from the first one, it returns a fork.
//
// Many settings of a peer decide the same for a long time, and some always. Their common
// part is simulated once.
func (d *Deployment) decide(now int) (forks []*Deployment) {
	decisions := d.decisions(now)
	for i := 1; i < len(decisions); i++ { // fork before the first decision is applied
		forks = append(forks, d.fork(decisions[i].autoscalers))
	}
	if len(decisions) > 1 {
		d.autoscalers = decisions[0].autoscalers
	}
	d.apply(&decisions[0])
	for i, f := range forks {
		f.apply(&decisions[i+1])
	}
	return forks
}

func (d *Deployment) apply(x *decision) {
	d.leave(x.leave)
	if x.replicas != d.replicas {
		d.scale(x.replicas, x.victims)
	}
}

// decisions returns the different decisions of the autoscalers. It sets their autoscalers
// only if there are several.
func (d *Deployment) decisions(now int) []decision {
	out, index := d.decisionBuffer.decisions[:0], d.decisionBuffer.index[:0]
	for _, a := range d.autoscalers {
		replicas, victims := a.Decide(d, now)
		if replicas < 0 || replicas == d.replicas {
			replicas, victims = d.replicas, nil
		}
		var leave []string
		if e, ok := a.(Drainer); ok {
			leave = e.Leave()
		}
		k := slices.IndexFunc(out, func(x decision) bool {
			return x.replicas == replicas && slices.Equal(x.victims, victims) && slices.Equal(x.leave, leave)
		})
		if k < 0 {
			k = len(out)
			out = append(out, decision{replicas: replicas, victims: victims, leave: leave})
		}
		index = append(index, k)
	}
	if len(out) > 1 {
		for i, k := range index {
			out[k].autoscalers = append(out[k].autoscalers, d.autoscalers[i])
		}
	}
	d.decisionBuffer.decisions, d.decisionBuffer.index = out, index
	return out
}

// fork returns a copy of the deployment for some of its autoscalers.
func (d *Deployment) fork(autoscalers []Autoscaler) *Deployment {
	f := *d
	f.autoscalers = autoscalers
	f.decisionBuffer.decisions, f.decisionBuffer.index = nil, nil
	routing := *d.routing
	f.routing, f.router = &routing, rand.New(&routing)
	f.starts = d.starts.Clone()
	f.gateway = d.gateway.clone()
	f.stats.minutes = slices.Clone(d.stats.minutes)
	for i := range f.snapshots {
		f.snapshots[i].samples = slices.Clone(d.snapshots[i].samples)
	}
	copies := make(map[*Pod]*Pod, len(d.pods))
	f.pods = make([]*Pod, len(d.pods))
	for i, p := range d.pods {
		f.pods[i] = p.clone()
		copies[p] = f.pods[i]
	}
	f.ready = make([]*Pod, len(d.ready))
	for i, p := range d.ready {
		f.ready[i] = copies[p]
	}
	return &f
}

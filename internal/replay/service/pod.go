// SPDX-License-Identifier: Apache-2.0

package service

import (
	"slices"
	"strconv"
)

// Phase is the phase of a simulated pod.
type Phase uint8

// The phases, in order.
const (
	Unschedulable Phase = iota // no node has room; it holds no GPU
	Pulling                    // bound to a node, containers not running: phase Pending
	Loading                    // containers running, not ready
	Serving                    // ready
	Draining                   // deleted, with requests in flight
	Deleted
)

// Pod is a replica with the life of its pod. Times are in seconds.
type Pod struct {
	ID      int
	Name    string
	Phase   Phase
	Created float64
	Since   float64 // start of the phase
	LeftAt  float64 // when a serving pod left the endpoints; 0: it did not
	StartTimes

	replica
	lastRead reading
}

func (d *Deployment) newPod(now float64) *Pod {
	id := d.created
	d.created++
	p := &Pod{ID: id, Name: "p" + strconv.Itoa(id), Created: now, Since: now}
	p.m, p.patience, p.gaugesOnly = &d.cfg.Model, d.cfg.Patience, d.cfg.GaugesOnly
	p.StartTimes = d.StartDelay(id).times(now, d.shortages)
	if p.Bound <= now {
		p.Phase = Pulling
	}
	return p
}

// starting reports whether the pod is not ready yet.
func (p *Pod) starting() bool { return p.Phase <= Loading }

// advanceStart moves a starting pod to its phase at now. It reports whether the pod became
// ready.
func (p *Pod) advanceStart(now float64) (ready bool) {
	if p.Phase == Unschedulable && now >= p.Bound {
		p.Phase, p.Since = Pulling, now
	}
	if p.Phase == Pulling && now >= p.Running {
		p.Phase, p.Since = Loading, now
	}
	if p.Phase == Loading && now >= p.Ready {
		p.Phase, p.Since, p.now = Serving, now, now
		return true
	}
	return false
}

// warmingUp reports whether a loading pod keeps its GPUs busy.
func (p *Pod) warmingUp(now float64) bool {
	return p.Phase == Loading && now > p.Ready-warmupShare*(p.Ready-p.Bound)
}

func (p *Pod) clone() *Pod {
	q := *p
	q.decoding, q.prefill, q.waiting = slices.Clone(p.decoding), p.prefill.clone(), p.waiting.clone()
	return &q
}

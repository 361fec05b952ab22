// SPDX-License-Identifier: Apache-2.0

package service

import (
	"slices"

	"github.com/gpupilot/gpupilot/internal/replay/trace"
	replicas "github.com/gpupilot/gpupilot/internal/scale/replica"
)

// Replicas returns spec.replicas.
func (d *Deployment) Replicas() int { return d.replicas }

// Pods returns all pods, including those that drain. They are valid until the next second.
func (d *Deployment) Pods() []*Pod { return d.pods }

// Ready returns the number of ready pods.
func (d *Deployment) Ready() int { return len(d.ready) }

// Live returns the number of pods that are not being deleted, and of those that start.
func (d *Deployment) Live() (all, starting int) {
	for _, p := range d.pods {
		if p.Phase < Draining {
			all++
			if p.starting() {
				starting++
			}
		}
	}
	return all, starting
}

// Queued returns the number of requests that wait for the first ready pod.
func (d *Deployment) Queued() int { return d.gateway.len() }

// Busy reports whether a request has not been answered.
func (d *Deployment) Busy() bool {
	return d.gateway.len() > 0 || slices.ContainsFunc(d.pods, func(p *Pod) bool { return p.inFlight() > 0 })
}

// GPUsPerReplica returns the GPUs of one pod.
func (d *Deployment) GPUsPerReplica() int32 { return d.cfg.Model.GPUs }

// Autoscalers returns the autoscalers that share the deployment.
func (d *Deployment) Autoscalers() []Autoscaler { return d.autoscalers }

// Starts returns the most recent starts. A pod starts when it is bound to a node, which
// is at its creation unless it waits for a node.
func (d *Deployment) Starts() *replicas.Durations { return &d.starts }

// Created returns the number of pods that were ever created. It is the ID of the next pod.
func (d *Deployment) Created() int { return d.created }

// StartDelay returns the delays of a pod, which may be in the future. Only an autoscaler
// that knows the future may use it.
func (d *Deployment) StartDelay(id int) StartDelay { return d.cfg.Startup.draw(d.cfg.Seed, id) }

// StartTimes returns the times of a pod that is created at a second.
func (d *Deployment) StartTimes(delay StartDelay, created float64) StartTimes {
	return delay.times(created, d.shortages)
}

// LongestStart returns a bound on the seconds that a start takes from now on.
func (d *Deployment) LongestStart() float64 {
	s := &d.cfg.Startup
	longest := 20*s.Median + 20*s.NodeMedian
	for _, full := range d.shortages {
		longest = max(longest, full.to-float64(d.now)+20*s.Median)
	}
	return longest
}

// PodState is a pod as SetState makes it.
type PodState struct {
	Phase  Phase
	Report *PodReport // nil: the pod reports nothing
}

// SetState replaces the pods and the queue, and records what the pods report at a second.
// It is for tests of autoscalers, and works on a zero Deployment. Pods get the IDs 0, 1, …
func (d *Deployment) SetState(second int, pods []PodState, queued int) {
	d.pods, d.ready, d.gateway, d.replicas = nil, nil, queue{}, len(pods)
	s := &d.snapshots[second%snapshotSeconds]
	s.second, s.samples = second, nil
	for id, state := range pods {
		p := &Pod{ID: id, Phase: state.Phase}
		d.pods = append(d.pods, p)
		if p.Phase == Serving {
			d.ready = append(d.ready, p)
		}
		if state.Report != nil {
			report := *state.Report
			report.pod, report.Serving = int32(id), p.Phase == Serving
			s.samples = append(s.samples, report)
		}
	}
	for range queued {
		d.gateway.push(trace.Request{})
	}
}

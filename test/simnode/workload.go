// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"context"
	"hash/fnv"
	"math"
	"reflect"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu/sim"
)

// stepEvery is the interval at which the models and the GPUs' states are updated.
const stepEvery = 200 * time.Millisecond

// Workload is a simulated service; see WorkloadAnnotation.
type Workload struct {
	Name  string
	Model Model
	// Offered returns the offered load, in requests/s.
	Offered func(now time.Time) float64
	// MemoryMiB is the memory of a loaded replica on each of its GPUs; default
	// 128,000, an LLM server that takes nine tenths of an H200.
	MemoryMiB float64
	// Latency makes the servers' latencies follow their load; nil: they are constant, see LateShare.
	Latency *Latency
}

// WorkloadStatus is a workload at one moment.
type WorkloadStatus struct {
	Time     time.Time
	Offered  float64 // requests a second
	Load     Load
	Serving  int     // pods that are Ready
	Starting int     // pods on a node that are not Ready yet
	Stopping int     // pods that are being deleted
	Rejected float64 // total requests rejected since the start
	Ended    float64 // total requests that ended since the start, the rejected ones included
	Missed   float64 // and those of them that were rejected or beyond a limit of Latency
}

type workload struct {
	Workload
	now WorkloadStatus
}

func newWorkload(w Workload) *workload {
	if w.MemoryMiB == 0 {
		w.MemoryMiB = 128_000
	}
	return &workload{Workload: w}
}

// AddWorkload adds a workload that pods can serve, unless there is one of that name.
func (n *Nodes) AddWorkload(w Workload) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.workloads[w.Name] == nil {
		n.workloads[w.Name] = newWorkload(w)
	}
}

// Status returns the named workload at the last step; false if there is none.
func (n *Nodes) Status(name string) (WorkloadStatus, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := n.workloads[name]
	if w == nil {
		return WorkloadStatus{}, false
	}
	return w.now, true
}

// stepLoop steps the models until ctx ends.
func (n *Nodes) stepLoop(ctx context.Context) {
	tick := time.NewTicker(stepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			n.step(now)
			n.writeStates(now)
		}
	}
}

// step steps each workload's model over the pods that serve now.
func (n *Nodes) step(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.workloads {
		w.now = WorkloadStatus{Time: now, Offered: w.Offered(now), Rejected: w.now.Rejected, Ended: w.now.Ended, Missed: w.now.Missed}
	}
	for _, p := range n.pods {
		w := n.workloads[p.pod.Annotations[WorkloadAnnotation]]
		if w == nil || !p.admitted {
			continue
		}
		switch p.phase {
		case serving:
			if p.closed { // it is out of the endpoints
				continue
			}
			w.now.Serving++
		case stopping:
			w.now.Stopping++
		case loading, broken:
			w.now.Starting++
		}
	}
	for _, w := range n.workloads {
		w.now.Load = w.Model.Step(now, w.now.Offered, w.now.Serving)
		w.now.Rejected += w.now.Load.Rejected
		w.now.Ended += w.now.Load.Served + w.now.Load.Rejected
		w.now.Missed += w.now.Load.Rejected + w.missed(w.now.Load)
	}
	for _, p := range n.pods {
		if w := n.workloads[p.pod.Annotations[WorkloadAnnotation]]; w != nil && p.phase == serving && !p.closed {
			served := w.now.Load.Served / float64(w.now.Serving)
			p.served += served
			p.times.add(w.Latency, w.now.Load, w.Model.Capacity, served)
		}
	}
}

// missed returns the requests of a step that were served beyond a limit.
func (w *workload) missed(l Load) float64 {
	if w.Latency == nil {
		return 0
	}
	return l.Served * w.Latency.Missed(l, w.Model.Capacity)
}

// writeStates writes the states of every node's GPUs, which depend on their holders.
func (n *Nodes) writeStates(now time.Time) {
	for _, nd := range n.all() {
		if err := n.writeState(nd, now); err != nil {
			n.log.Error("GPU state not written", "node", nd.name, "err", err)
		}
	}
}

// writeState writes the state of a node's GPUs, if it has changed.
func (n *Nodes) writeState(nd *node, now time.Time) error {
	n.writing.Lock()
	defer n.writing.Unlock()
	state := n.gpuStates(nd, now)
	if reflect.DeepEqual(state, nd.state) {
		return nil
	}
	if err := sim.WriteState(n.StateFile(nd.name), state); err != nil {
		return err
	}
	nd.state = state
	return nil
}

func (n *Nodes) gpuStates(nd *node, now time.Time) sim.State {
	n.mu.Lock()
	defer n.mu.Unlock()
	state := sim.State{GPUs: make([]sim.GPUState, nd.gpus)}
	for i, h := range nd.holders {
		state.GPUs[i] = sim.Busy(0, 0)
		if p := n.pods[h.uid]; p != nil {
			state.GPUs[i] = p.gpuState(i, now)
		}
	}
	return state
}

// gpuState returns the state of the pod's GPU i: its memory fills while the pod loads,
// and it is utilised while the pod serves. Nodes.mu is held.
func (p *podRun) gpuState(i int, now time.Time) sim.GPUState {
	w := p.nodes.workloads[p.pod.Annotations[WorkloadAnnotation]]
	if w == nil {
		return sim.Busy(0, 0)
	}
	switch p.phase {
	case loading:
		part := 1.0
		if d := p.duration(StartupAnnotation, 0); d > 0 {
			part = min(1, now.Sub(p.started).Seconds()/d.Seconds())
		}
		return sim.Busy(0, math.Round(part*w.MemoryMiB))
	case serving:
		if p.closed {
			return sim.Busy(0, w.MemoryMiB)
		}
		return sim.Busy(uneven(w.now.Load.Utilization, p.pod.Name, i, now), w.MemoryMiB)
	case broken, stopping:
	}
	return sim.Busy(0, w.MemoryMiB)
}

// uneven varies a replica's utilisation slowly by up to 4 points around the workload's
// mean, differently for each replica, since load balancing is never perfect. The
// variation is smaller near 0 and 100, so that the value stays in range.
func uneven(u float64, pod string, i int, now time.Time) float64 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(pod)) // never fails
	phase := float64(h.Sum32()%628)/100 + float64(i)
	room := min(1, u/10, (100-u)/10)
	t := float64(now.UnixMilli()) / 1000
	return math.Round(100*(u+4*max(0, room)*math.Sin(t/2.5+phase))) / 100
}

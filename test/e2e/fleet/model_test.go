// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

// Package fleet runs the real controller on a thousand nodes that churn: agents
// restart, hang and answer nonsense, nodes go and come back, pods are evicted, loads
// rise and fall. The control plane is real; the nodes, their kubelets and their agents are
// this program, on loopback. Time is compressed by the churn: every node is replaced
// within minutes, as in months of a cluster's life.
package fleet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	namespace   = "fleet"
	gpusPerNode = 8
	target      = 60.0 // %, of every GPUAutoscaler
)

// fault is a fault of an agent's answers.
type fault int

const (
	well fault = iota
	silent
	garbage
	faults // how many
)

// fleet is the current state of the cluster, for the agents' pages and for the judge.
type fleet struct {
	mu        sync.Mutex
	rand      *rand.Rand
	nodes     []*node
	byIP      map[netip.Addr]*node
	pods      map[types.UID]*pod
	workloads map[string]*workload
	addresses uint32
	pages     int
}

// node is one node with its agent.
type node struct {
	name  string
	agent string // its pod's name; empty: there is none
	ip    netip.Addr
	fault fault
	gone  bool // the Node was deleted
	gpus  [gpusPerNode]*pod
}

// pod is one replica of a workload.
type pod struct {
	name    string
	of      *workload
	ip      netip.Addr
	serving bool // the API server has accepted that it is ready: endpoints send load to no other pod
	at      *node
	slot    int
}

// workload is one Deployment under one GPUAutoscaler.
type workload struct {
	name    string
	load    float64 // in replicas at 100 %
	serving int
	past    []offered // what was offered, newest last
	seen    int32     // spec.replicas as last written; 0: not seen yet
}

type offered struct {
	round int // see fleet.round
	load  float64
}

// need returns the number of replicas that a load needs at the target.
func need(load float64) int32 { return int32(math.Ceil(load*100/target - 1e-9)) }

// enough returns the smallest number of replicas that is not changed: 10 % above the target is within the tolerance.
func enough(load float64) int32 { return int32(math.Ceil(load*100/(1.1*target) - 1e-9)) }

func newFleet(nodes int) *fleet {
	f := &fleet{
		rand: rand.New(rand.NewPCG(1, 2)), byIP: map[netip.Addr]*node{}, pods: map[types.UID]*pod{}, workloads: map[string]*workload{},
	}
	for i := range nodes {
		f.nodes = append(f.nodes, &node{name: fmt.Sprintf("fleet-%04d", i)})
	}
	return f
}

// address returns the next address. Addresses repeat after a million. f.mu is held.
func (f *fleet) address() netip.Addr {
	f.addresses++
	i := f.addresses % (200 * 250 * 250)
	return netip.AddrFrom4([4]byte{127, byte(20 + i/62500), byte(1 + i/250%250), byte(1 + i%250)})
}

// round is how many times the controller has asked each agent, once a second if the machine has time for it. A decision lags
// behind the load by rounds, not by time. f.mu is held.
func (f *fleet) round() int { return f.pages / len(f.nodes) }

// offer sets the load of a workload. f.mu is held.
func (f *fleet) offer(w *workload, load float64) {
	w.load = load
	w.past = append(w.past, offered{f.round(), load})
}

// bounds returns the lowest and highest load since a round.
func (w *workload) bounds(since int) (low, high float64) {
	low, high = w.load, w.load
	for i, o := range slices.Backward(w.past) {
		low, high = min(low, o.load), max(high, o.load)
		if o.round < since {
			w.past = w.past[i:] // what came before was over then
			break
		}
	}
	return low, high
}

// occupy assigns a GPU of the node with the most free GPUs to a pod. f.mu is held.
func (f *fleet) occupy(p *pod) bool {
	start := f.rand.IntN(len(f.nodes))
	for i := range f.nodes {
		n := f.nodes[(start+i)%len(f.nodes)]
		if n.gone || n.agent == "" {
			continue
		}
		if slot := slices.Index(n.gpus[:], nil); slot >= 0 {
			n.gpus[slot], p.at, p.slot = p, n, slot
			return true
		}
	}
	return false
}

// beginServing gives a pod its share of the load, if it is still there.
func (f *fleet) beginServing(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.pods[uid]; p != nil && !p.serving {
		p.serving = true
		p.of.serving++
	}
}

// vacate releases a pod's GPU. f.mu is held.
func (f *fleet) vacate(uid types.UID) {
	p := f.pods[uid]
	if p == nil {
		return
	}
	delete(f.pods, uid)
	if p.serving {
		p.serving = false
		p.of.serving--
	}
	if p.at != nil && p.at.gpus[p.slot] == p {
		p.at.gpus[p.slot] = nil
	}
}

// page returns the exposition of the agent at an address, and the agent's fault.
func (f *fleet) page(ip netip.Addr, now time.Time) ([]byte, fault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pages++
	n := f.byIP[ip]
	if n == nil {
		return nil, well, false
	}
	out := make([]byte, 0, 4096)
	for i, p := range n.gpus {
		used := 0.0
		owner := ""
		if p != nil {
			owner = fmt.Sprintf(",container=\"server\",namespace=%q,pod=%q", namespace, p.name)
			if p.serving && p.of.serving > 0 {
				used = min(100, 100*p.of.load/float64(p.of.serving))
			}
		}
		out = fmt.Appendf(out, "DCGM_FI_DEV_GPU_UTIL{gpu=\"%d\",UUID=\"GPU-%s-%d\",device=\"nvidia%d\",modelName=\"NVIDIA H200\",Hostname=%q%s} %.2f\n",
			i, n.name, i, i, n.name, owner, used)
	}
	out = fmt.Appendf(out, "gpupilot_collection_timestamp_seconds %.3f\ngpupilot_collection_interval_seconds 1\n", float64(now.UnixMilli())/1000)
	return out, n.fault, true
}

// scaled records a value of a workload's spec.replicas. It returns the error of a wrong change.
func (f *fleet) scaled(name string, replicas int32) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.workloads[name]
	if w == nil || w.seen == replicas {
		return ""
	}
	before := w.seen
	w.seen = replicas
	_, high := w.bounds(f.round() - 2*slack)
	low, _ := w.bounds(f.round() - slack)
	switch {
	case before == 0:
	case replicas < before && replicas < need(low):
		return fmt.Sprintf("%s went from %d to %d replicas: a load of %.1f needs %d", name, before, replicas, low, need(low))
	case replicas > before && float64(replicas) > 1.5*float64(need(high))+1:
		return fmt.Sprintf("%s went from %d to %d replicas: a load of %.1f needs %d", name, before, replicas, high, need(high))
	}
	return ""
}

// changed reports whether spec.replicas differs from the last value.
func (f *fleet) changed(name string, replicas int32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.workloads[name]
	return w != nil && w.seen != 0 && w.seen != replicas
}

// slack is how many rounds a decision may lag behind the load: the stabilisation window of 5 s, and the way of the replicas
// through the API server.
const slack = 15

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/discovery"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/series"
)

const (
	// auditEvery is the time between two comparisons of what exporters claim with
	// what the API server says. Readings are checked when they are made, each
	// time; the audit tells people.
	auditEvery = 5 * time.Second
	// auditLooks is how many audits in a row must find a contradiction. A pod that
	// is replaced by one of its name stays on its exporter's page for a moment.
	auditLooks = 2
	// maxContradictions bounds how many are kept and told at a time.
	maxContradictions = 256
)

// contradictionReason says how an exporter contradicts the API server. The
// values are public: they are labels of a metric.
type contradictionReason string

// The reasons.
const (
	tooManyDevices   contradictionReason = "too_many_devices"   // of one pod
	wrongNode        contradictionReason = "wrong_node"         // the pod runs elsewhere
	nodeOverfull     contradictionReason = "node_overfull"      // of all pods together
	disagreesOnOwner contradictionReason = "disagrees_on_owner" // with the agent of the node
)

func contradictionReasons() []contradictionReason {
	return []contradictionReason{tooManyDevices, wrongNode, nodeOverfull, disagreesOnOwner}
}

// contradiction is a claim of an exporter that the API server contradicts.
type contradiction struct {
	target string
	reason contradictionReason
	pod    types.NamespacedName // that the claim is about; empty for nodeOverfull
}

// audit compares what exporters claim with what the API server says.
type audit struct {
	c     *Controller
	looks map[contradiction]int // in a row; of run's goroutine
	node  []*claimSet           // of the node that is looked at; of run's goroutine

	// found are the contradictions that lasted. It is replaced, never changed.
	found atomic.Pointer[findings]
}

// findings are contradictions in words.
type findings struct {
	all   map[contradiction]string
	byPod map[types.NamespacedName][]string // for decisions, which look up each of their pods
}

func newAudit(c *Controller) *audit {
	a := &audit{c: c, looks: map[contradiction]int{}}
	a.found.Store(&findings{})
	return a
}

// run audits until ctx is done.
func (a *audit) run(ctx context.Context) {
	every := time.NewTicker(auditEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-every.C:
			a.look(now)
		}
	}
}

// look audits once. What is new is counted and logged; the leader writes an Event.
func (a *audit) look(now time.Time) {
	claimed := a.claims(now)
	before, looks := a.found.Load().all, map[contradiction]int{}
	found := findings{all: map[contradiction]string{}, byPod: map[types.NamespacedName][]string{}}
	for x, text := range claimed {
		if looks[x] = a.looks[x] + 1; looks[x] < auditLooks || len(found.all) >= maxContradictions {
			continue
		}
		found.all[x] = text
		found.byPod[x.pod] = append(found.byPod[x.pod], text)
		if _, known := before[x]; !known {
			a.tell(x, text)
		}
	}
	a.looks = looks
	a.found.Store(&found)
}

// tell makes one contradiction known.
func (a *audit) tell(x contradiction, text string) {
	c := a.c
	c.meters.contradictions.WithLabelValues(string(x.reason)).Inc()
	c.deps.Log.Warn("exporter contradicts the API server, its claim is ignored", "target", x.target, "reason", string(x.reason), "claim", text)
	if !c.deps.Leading() {
		return
	}
	_, name, _ := strings.Cut(x.target, "/")
	namespace, name, _ := strings.Cut(name, "/")
	pod, ok := c.deps.Pods.Get(namespace, name)
	if !ok {
		return
	}
	c.deps.Record(Event{
		About: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: pod.UID},
		Kind:  corev1.EventTypeWarning, Reason: reasonContradicted, Action: "Observe", Note: clip(text, maxMessage),
	})
}

// maxNodeClaims is for how many exporters of a node memory is kept.
const maxNodeClaims = 8

// claimSet is what one target claims.
type claimSet struct {
	target  string
	labels  series.TargetLabels
	devices []series.DeviceOwners
	pods    []types.NamespacedName // one for each device that a pod holds, sorted
}

// take makes it the set of a claim. It keeps the memory of the last one.
func (h *claimSet) take(cl *series.Claim) {
	h.target, h.labels = cl.Target, cl.Labels
	h.devices, h.pods = append(h.devices[:0], cl.Devices...), h.pods[:0]
	for _, d := range cl.Devices {
		for i, o := range d.Owners {
			// Containers of one pod stand side by side.
			if i == 0 || d.Owners[i-1].Namespace != o.Namespace || d.Owners[i-1].Pod != o.Pod {
				h.pods = append(h.pods, types.NamespacedName{Namespace: o.Namespace, Name: o.Pod})
			}
		}
	}
	slices.SortFunc(h.pods, func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// eachPod calls f with each pod and the number of its devices.
func (h *claimSet) eachPod(f func(pod types.NamespacedName, devices int)) {
	for from, i := 0, 1; i <= len(h.pods); i++ {
		if i == len(h.pods) || h.pods[i] != h.pods[from] {
			f(h.pods[from], i-from)
			from = i
		}
	}
}

// claims returns all contradictions that there are at the moment, in words. It
// stops at a multiple of maxContradictions. It looks at one node at a time, and
// holds no more than its exporters' claims: there may be 10,000 nodes.
func (a *audit) claims(now time.Time) map[contradiction]string {
	out := map[contradiction]string{}
	n := 0 // of the claims that are of the same node
	a.c.deps.Store.Claims(func(cl *series.Claim) {
		if now.Sub(cl.At) > settled {
			return // it is silent, and nothing that it said counts any more
		}
		if n > 0 && a.node[0].labels.Node != cl.Labels.Node {
			a.judge(out, a.node[:n], now)
			n = 0
		}
		if n == len(a.node) {
			a.node = append(a.node, &claimSet{})
		}
		a.node[n].take(cl)
		n++
	})
	a.judge(out, a.node[:n], now)
	if len(a.node) > maxNodeClaims {
		a.node = nil
	}
	return out
}

// judge adds what speaks against the claims of one node's exporters.
func (a *audit) judge(out map[contradiction]string, node []*claimSet, now time.Time) {
	agent := agentOf(node)
	for _, h := range node {
		if len(out) >= 4*maxContradictions {
			return
		}
		a.compare(out, h, now)
		if agent != nil && agent != h && h.labels.Rank > discovery.RankAgent {
			a.disagree(out, h, agent)
		}
	}
}

// agentOf is the agent of a node that names owners; nil: there is none.
func agentOf(node []*claimSet) (agent *claimSet) {
	for _, h := range node {
		if h.labels.Rank == discovery.RankAgent && h.labels.Node != "" && (agent == nil || agent.target < h.target) {
			agent = h
		}
	}
	return agent
}

// settled is how long a pod must have been on a node for exporters elsewhere to
// have noticed that it is not theirs: dcgm-exporter collects every 30 s by default.
const settled = 2 * time.Minute

// compare adds what the API server says against one target's claims.
func (a *audit) compare(out map[contradiction]string, h *claimSet, now time.Time) {
	name := h.target
	h.eachPod(func(key types.NamespacedName, n int) {
		pod, ok := a.c.deps.Pods.Get(key.Namespace, key.Name)
		switch {
		case !ok || Finished(pod):
			// It is gone, and its exporter has not noticed yet. Nobody reads its values.
		case pod.Spec.NodeName != h.labels.Node:
			if pod.Spec.NodeName != "" && now.Sub(pod.CreationTimestamp.Time) > settled {
				out[contradiction{name, wrongNode, key}] = fmt.Sprintf("%s on node %s says that pod %s holds %s; the pod runs on node %s",
					name, h.labels.Node, key, devicesText(n), pod.Spec.NodeName)
			}
		default:
			if most := a.c.devices.most(pod); most >= 0 && n > most {
				out[contradiction{name, tooManyDevices, key}] = fmt.Sprintf("%s says that pod %s holds %s; the pod requests %d",
					name, key, devicesText(n), most)
			}
		}
	})
	if has, known := a.c.devices.capacity(h.labels.Node); known && len(h.devices) > has {
		out[contradiction{name, nodeOverfull, types.NamespacedName{}}] = fmt.Sprintf("%s says that pods hold %s; node %s has %d",
			name, devicesText(len(h.devices)), h.labels.Node, has)
	}
}

func devicesText(n int) string {
	if n == 1 {
		return "1 GPU device"
	}
	return fmt.Sprintf("%d GPU devices", n)
}

// disagree adds the pods to which a target gives devices that the agent of the
// node knows and gives to others. Of pods that are gone kubelets tell for a while.
func (a *audit) disagree(out map[contradiction]string, h, agent *claimSet) {
	truth := make(map[string][]gpu.Owner, len(agent.devices))
	for _, d := range agent.devices {
		truth[d.Device] = d.Owners
	}
	for _, d := range h.devices {
		owned, known := truth[d.Device]
		if !known {
			continue
		}
		for _, o := range d.Owners {
			same := func(p gpu.Owner) bool { return p.Namespace == o.Namespace && p.Pod == o.Pod }
			if slices.ContainsFunc(owned, same) {
				continue
			}
			key := types.NamespacedName{Namespace: o.Namespace, Name: o.Pod}
			if pod, ok := a.c.deps.Pods.Get(key.Namespace, key.Name); !ok || Finished(pod) {
				continue
			}
			out[contradiction{h.target, disagreesOnOwner, key}] = fmt.Sprintf("%s says that pod %s holds %s; %s on the same node says that another pod does",
				h.target, key, d.Device, agent.target)
		}
	}
}

// about are the contradictions about a pod, in words, sorted.
func (a *audit) about(pods []*corev1.Pod) []string {
	byPod := a.found.Load().byPod
	if len(byPod) == 0 {
		return nil
	}
	var out []string
	for _, pod := range pods {
		out = append(out, byPod[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}]...)
	}
	slices.Sort(out)
	return out
}

// byTarget is the first contradiction of each target, in words.
func (a *audit) byTarget() map[string]string {
	out := map[string]string{}
	for x, text := range a.found.Load().all {
		if have, ok := out[x.target]; !ok || cmp.Compare(text, have) < 0 {
			out[x.target] = text
		}
	}
	return out
}

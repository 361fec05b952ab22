// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
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

// claimSet is what one target claims.
type claimSet struct {
	labels  series.TargetLabels
	pods    map[types.NamespacedName]int // devices by pod
	devices map[string][]gpu.Owner
}

// claims returns all contradictions that there are at the moment, in words. It
// stops at a multiple of maxContradictions.
func (a *audit) claims(now time.Time) map[contradiction]string {
	targets := map[string]*claimSet{}
	a.c.deps.Store.Claims(func(cl series.Claim) {
		if now.Sub(cl.At) > settled {
			return // it is silent, and nothing that it said counts any more
		}
		h := targets[cl.Target]
		if h == nil {
			h = &claimSet{labels: cl.Labels, pods: map[types.NamespacedName]int{}, devices: map[string][]gpu.Owner{}}
			targets[cl.Target] = h
		}
		h.devices[cl.Device] = cl.Owners
		for i, o := range cl.Owners {
			// Containers of one pod stand side by side.
			if i == 0 || cl.Owners[i-1].Namespace != o.Namespace || cl.Owners[i-1].Pod != o.Pod {
				h.pods[types.NamespacedName{Namespace: o.Namespace, Name: o.Pod}]++
			}
		}
	})
	out := map[contradiction]string{}
	agents := agentsOf(targets)
	for name, h := range targets {
		if len(out) >= 4*maxContradictions {
			break
		}
		a.compare(out, name, h, now)
		if agent := agents[h.labels.Node]; agent != "" && agent != name && h.labels.Rank > discovery.RankAgent {
			a.disagree(out, name, h, agent, targets[agent])
		}
	}
	return out
}

// agentsOf is the agent of each node that names owners.
func agentsOf(targets map[string]*claimSet) map[string]string {
	out := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(targets)) {
		if h := targets[name]; h.labels.Rank == discovery.RankAgent && h.labels.Node != "" {
			out[h.labels.Node] = name
		}
	}
	return out
}

// settled is how long a pod must have been on a node for exporters elsewhere to
// have noticed that it is not theirs: dcgm-exporter collects every 30 s by default.
const settled = 2 * time.Minute

// compare adds what the API server says against one target's claims.
func (a *audit) compare(out map[contradiction]string, name string, h *claimSet, now time.Time) {
	for key, n := range h.pods {
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
	}
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
func (a *audit) disagree(out map[contradiction]string, name string, h *claimSet, agent string, truth *claimSet) {
	for device, owners := range h.devices {
		owned, known := truth.devices[device]
		if !known {
			continue
		}
		for _, o := range owners {
			same := func(p gpu.Owner) bool { return p.Namespace == o.Namespace && p.Pod == o.Pod }
			if slices.ContainsFunc(owned, same) {
				continue
			}
			key := types.NamespacedName{Namespace: o.Namespace, Name: o.Pod}
			if pod, ok := a.c.deps.Pods.Get(key.Namespace, key.Name); !ok || Finished(pod) {
				continue
			}
			out[contradiction{name, disagreesOnOwner, key}] = fmt.Sprintf("%s says that pod %s holds %s; %s on the same node says that another pod does",
				name, key, device, agent)
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

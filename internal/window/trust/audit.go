// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// auditEvery is the interval at which the claims of exporters are compared with
	// the API server. Every reading is checked when it is read; the audit only
	// reports contradictions to users.
	auditEvery = 5 * time.Second
	// minStreak is the number of consecutive audits that must find a contradiction.
	// After a pod is replaced by one of the same name, its exporter still exposes the
	// old pod for a moment.
	minStreak = 2
	// maxContradictions bounds the number of reported contradictions.
	maxContradictions = 256
)

// contradictionReason is the kind of a contradiction between an exporter and the API
// server. The values are public: they are labels of a metric.
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

// Pods finds pods in memory. The pods are shared and not to be changed.
type Pods interface {
	// Get finds a pod by its name.
	Get(namespace, name string) (*corev1.Pod, bool)
}

// AuditDeps holds the collaborators of an Audit.
type AuditDeps struct {
	Store   *series.Store
	Pods    Pods
	Devices *Devices
	Record  func(target, note string) // records an Event about a target's claim; does not block
	Log     *slog.Logger              // nil discards
}

// Audit compares the claims of exporters with the API server. It counts contradictions
// for /metrics.
type Audit struct {
	deps    AuditDeps
	found   *prometheus.CounterVec
	streaks map[contradiction]int // consecutive audits that found it; owned by Run's goroutine
	node    []*claimSet           // claims of the node under audit; owned by Run's goroutine

	// findings are the contradictions that lasted. It is replaced, never changed.
	findings atomic.Pointer[findings]
}

// findings holds the texts of contradictions.
type findings struct {
	all   map[contradiction]string
	byPod map[types.NamespacedName][]string // decisions look up each of their pods
}

// NewAudit makes an Audit. Run starts it.
func NewAudit(deps AuditDeps) *Audit {
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	a := &Audit{deps: deps, streaks: map[contradiction]int{}, found: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gpupilot_exporter_contradictions_total",
		Help: "Claims of exporters about who holds GPU devices that the API server or the node's agent contradicts, by reason. They are ignored.",
	}, []string{"reason"})}
	for _, reason := range contradictionReasons() {
		a.found.WithLabelValues(string(reason))
	}
	a.findings.Store(&findings{})
	return a
}

// Describe implements prometheus.Collector.
func (a *Audit) Describe(ch chan<- *prometheus.Desc) { a.found.Describe(ch) }

// Collect implements prometheus.Collector.
func (a *Audit) Collect(ch chan<- prometheus.Metric) { a.found.Collect(ch) }

// Run audits until ctx is done.
func (a *Audit) Run(ctx context.Context) {
	every := time.NewTicker(auditEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-every.C:
			a.Compare(now)
		}
	}
}

// Compare compares all claims once. New contradictions are counted, logged and
// recorded.
func (a *Audit) Compare(now time.Time) {
	claimed := a.findContradictions(now)
	before, looks := a.findings.Load().all, map[contradiction]int{}
	found := findings{all: map[contradiction]string{}, byPod: map[types.NamespacedName][]string{}}
	for x, text := range claimed {
		if looks[x] = a.streaks[x] + 1; looks[x] < minStreak || len(found.all) >= maxContradictions {
			continue
		}
		found.all[x] = text
		found.byPod[x.pod] = append(found.byPod[x.pod], text)
		if _, known := before[x]; !known {
			a.announce(x, text)
		}
	}
	a.streaks = looks
	a.findings.Store(&found)
}

// announce counts, logs and records an Event for one new contradiction.
func (a *Audit) announce(x contradiction, text string) {
	a.found.WithLabelValues(string(x.reason)).Inc()
	a.deps.Log.Warn("exporter contradicts the API server, its claim is ignored", "target", x.target, "reason", string(x.reason), "claim", text)
	a.deps.Record(x.target, text)
}

// maxNodeClaims is the number of exporters of a node for which memory is kept.
const maxNodeClaims = 8

// claimSet holds the claims of one target.
type claimSet struct {
	target  string
	labels  series.TargetLabels
	devices []series.DeviceOwners
	pods    []types.NamespacedName // one for each device that a pod holds, sorted
}

// setTo replaces the claims, and reuses the memory of the previous ones.
func (h *claimSet) setTo(cl *series.Claim) {
	h.target, h.labels = cl.Target, cl.Labels
	h.devices, h.pods = append(h.devices[:0], cl.Devices...), h.pods[:0]
	for _, d := range cl.Devices {
		for i, o := range d.Owners {
			// The containers of one pod are adjacent.
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

// findContradictions returns the texts of all current contradictions. It stops at a
// multiple of maxContradictions. It audits one node at a time, and holds only the
// claims of that node's exporters: there may be 10,000 nodes.
func (a *Audit) findContradictions(now time.Time) map[contradiction]string {
	out := map[contradiction]string{}
	n := 0 // claims of the same node so far
	a.deps.Store.Claims(func(cl *series.Claim) {
		if now.Sub(cl.At) > exporterLag {
			return // the target no longer answers, and its claims no longer count
		}
		if n > 0 && a.node[0].labels.Node != cl.Labels.Node {
			a.auditNode(out, a.node[:n], now)
			n = 0
		}
		if n == len(a.node) {
			a.node = append(a.node, &claimSet{})
		}
		a.node[n].setTo(cl)
		n++
	})
	a.auditNode(out, a.node[:n], now)
	if len(a.node) > maxNodeClaims {
		a.node = nil
	}
	return out
}

// auditNode adds the contradictions of the claims of one node's exporters.
func (a *Audit) auditNode(out map[contradiction]string, node []*claimSet, now time.Time) {
	agent := agentOf(node)
	for _, h := range node {
		if len(out) >= 4*maxContradictions {
			return
		}
		a.compareWithAPIServer(out, h, now)
		if agent != nil && agent != h && h.labels.Rank > discovery.RankAgent {
			a.compareWithAgent(out, h, agent)
		}
	}
}

// agentOf returns the agent of a node that claims owners; nil: there is none.
func agentOf(node []*claimSet) (agent *claimSet) {
	for _, h := range node {
		if h.labels.Rank == discovery.RankAgent && h.labels.Node != "" && (agent == nil || agent.target < h.target) {
			agent = h
		}
	}
	return agent
}

// exporterLag is the time after which exporters of other nodes must have dropped a
// pod that was replaced: dcgm-exporter collects every 30 s by default.
const exporterLag = 2 * time.Minute

// compareWithAPIServer adds the contradictions between the API server and the claims
// of one target.
func (a *Audit) compareWithAPIServer(out map[contradiction]string, h *claimSet, now time.Time) {
	name := h.target
	h.eachPod(func(key types.NamespacedName, n int) {
		pod, ok := a.deps.Pods.Get(key.Namespace, key.Name)
		switch {
		case !ok || replica.Finished(pod):
			// The pod is gone, but its exporter still exposes it. Its values are not read.
		case pod.Spec.NodeName != h.labels.Node:
			if pod.Spec.NodeName != "" && now.Sub(pod.CreationTimestamp.Time) > exporterLag {
				out[contradiction{name, wrongNode, key}] = fmt.Sprintf("%s on node %s reports that pod %s holds %s; the pod runs on node %s",
					name, h.labels.Node, key, formatDevices(n), pod.Spec.NodeName)
			}
		default:
			if limit := a.deps.Devices.MostOfPod(pod); limit >= 0 && n > limit {
				out[contradiction{name, tooManyDevices, key}] = fmt.Sprintf("%s reports that pod %s holds %s; the pod requests %d",
					name, key, formatDevices(n), limit)
			}
		}
	})
	if has, known := a.deps.Devices.OfNode(h.labels.Node); known && len(h.devices) > has {
		out[contradiction{name, nodeOverfull, types.NamespacedName{}}] = fmt.Sprintf("%s reports that pods hold %s; node %s has %d",
			name, formatDevices(len(h.devices)), h.labels.Node, has)
	}
}

func formatDevices(n int) string {
	if n == 1 {
		return "1 GPU device"
	}
	return fmt.Sprintf("%d GPU devices", n)
}

// compareWithAgent adds the pods that a target reports as owners of a device for
// which the agent of the node reports other owners. Pods that are gone are skipped,
// since kubelets still list them for a while.
func (a *Audit) compareWithAgent(out map[contradiction]string, h, agent *claimSet) {
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
			if pod, ok := a.deps.Pods.Get(key.Namespace, key.Name); !ok || replica.Finished(pod) {
				continue
			}
			out[contradiction{h.target, disagreesOnOwner, key}] = fmt.Sprintf("%s reports that pod %s holds %s; %s on the same node reports another pod",
				h.target, key, d.Device, agent.target)
		}
	}
}

// Contradictions returns the sorted texts of the contradictions about these pods.
func (a *Audit) Contradictions(pods []*corev1.Pod) []string {
	byPod := a.findings.Load().byPod
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

// ByTarget returns the text of the first contradiction of each target.
func (a *Audit) ByTarget() map[string]string {
	out := map[string]string{}
	for x, text := range a.findings.Load().all {
		if have, ok := out[x.target]; !ok || cmp.Compare(text, have) < 0 {
			out[x.target] = text
		}
	}
	return out
}

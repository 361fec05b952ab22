// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"cmp"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/series"
)

// defaultPort is dcgm-exporter's, and ours.
const defaultPort = 9400

// Finder finds targets. Find is for one goroutine at a time; the other methods
// are safe for concurrent use.
type Finder struct {
	cfg  Config
	pods Pods
	log  *slog.Logger

	hosts   atomic.Pointer[map[netip.Addr]bool] // the nodes' addresses
	hostsAt time.Time                           // when they were listed; Find's

	mu      sync.Mutex
	refused map[string]string // why exporters are not scraped, by target
}

// New makes a Finder. A nil log discards.
func New(cfg Config, pods Pods, log *slog.Logger) *Finder {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Finder{cfg: cfg, pods: pods, log: log}
}

// Find lists the targets: of exporters with these fields, and of the pods that
// the readers read.
func (f *Finder) Find(now time.Time, fields gpu.FieldSet, readers []Reader) *List {
	targets := f.Agents(fields)
	for _, namespace := range f.cfg.DCGMNamespaces {
		targets = append(targets, f.exporters(KindDCGM, namespace, f.cfg.DCGM, fields)...)
	}
	readers = slices.DeleteFunc(readers, func(r Reader) bool { return !r.readsPods() })
	if len(readers) > 0 {
		f.findHosts(now)
	}
	ofPods, excess := f.podTargets(readers)
	targets = append(targets, ofPods...)
	out := &List{Targets: targets, Places: make(map[string]string, len(targets)), Nodes: make(map[string]string, len(targets)), Excess: excess}
	for i := range targets {
		t := &targets[i]
		out.Nodes[t.Name] = t.Labels.Node
		out.Places[t.Name] = NodePlace(t.Labels.Node)
		if t.Kind == KindPod {
			out.Places[t.Name] = PodPlace(t.Labels.Namespace, t.Labels.Pod)
		}
	}
	return out
}

// Agents lists the targets that are our agents, one per node.
func (f *Finder) Agents(fields gpu.FieldSet) []Target {
	return f.exporters(KindAgent, f.cfg.AgentNamespace, f.cfg.Agents, fields)
}

// IsExporter reports whether a pod is one that would be scraped for GPUs.
func (f *Finder) IsExporter(pod *corev1.Pod) bool {
	set := labels.Set(pod.Labels)
	match := func(s labels.Selector) bool { return s.Matches(set) }
	return f.cfg.AgentNamespace == pod.Namespace && slices.ContainsFunc(f.cfg.Agents, match) ||
		slices.Contains(f.cfg.DCGMNamespaces, pod.Namespace) && slices.ContainsFunc(f.cfg.DCGM, match)
}

// exporters are the targets of one kind in a namespace, found by their pods' labels.
func (f *Finder) exporters(kind, namespace string, selectors []labels.Selector, fields gpu.FieldSet) []Target {
	if namespace == "" {
		return nil // would select in all namespaces
	}
	job, rank := "gpupilot-agent", uint8(RankAgent)
	if kind == KindDCGM {
		job, rank = "dcgm-exporter", RankDCGM
	}
	var out []Target
	found := map[string]bool{}
	for _, sel := range selectors {
		for _, pod := range f.pods.Select(namespace, sel) {
			name := kind + "/" + pod.Namespace + "/" + pod.Name
			if !Scrapable(pod) || found[name] {
				continue
			}
			found[name] = true
			u, err := f.endpoint(kind, pod, exporterPort(pod), "/metrics")
			if err != nil {
				f.refuse(name, err)
				continue
			}
			out = append(out, Target{
				Name: name, Kind: kind, URL: u, Fields: fields,
				Labels: series.TargetLabels{Node: pod.Spec.NodeName, Instance: u.Host, Job: job, Rank: rank},
			})
		}
	}
	return out
}

// Scrapable reports whether a pod's containers run and can be reached.
func Scrapable(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "" && pod.DeletionTimestamp == nil
}

// SameEndpoint reports whether a change of a pod leaves what is scraped of it as
// it was. old is nil for a new pod, pod for one that is gone.
func SameEndpoint(old, pod *corev1.Pod) bool {
	if old == nil || pod == nil {
		return old == pod
	}
	return Scrapable(old) == Scrapable(pod) && old.UID == pod.UID && old.Status.PodIP == pod.Status.PodIP &&
		old.Status.HostIP == pod.Status.HostIP && old.Spec.NodeName == pod.Spec.NodeName && maps.Equal(old.Labels, pod.Labels)
}

// exporterPort is the port called metrics, else the first one, else 9400.
func exporterPort(pod *corev1.Pod) int32 {
	first := int32(0)
	for _, ctr := range pod.Spec.Containers {
		for _, p := range ctr.Ports {
			if p.Name == "metrics" {
				return p.ContainerPort
			}
			first = cmp.Or(first, p.ContainerPort)
		}
	}
	return cmp.Or(first, defaultPort)
}

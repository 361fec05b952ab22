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
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// defaultPort is dcgm-exporter's, and ours.
const defaultPort = 9400

// The default selectors of exporters, separated by semicolons. The last two of DefaultDCGM are GKE's managed exporter and
// the exporter of AMD's GPU operator.
const (
	DefaultAgents = "app.kubernetes.io/name=gpupilot-agent"
	DefaultDCGM   = "app.kubernetes.io/name=dcgm-exporter;app=nvidia-dcgm-exporter;app.kubernetes.io/name=gke-managed-dcgm-exporter;" +
		"app.kubernetes.io/name=metrics-exporter,daemonset-name"
)

// DefaultDCGMNamespaces returns where dcgm-exporters run unless the operator says otherwise: the controller's namespace, and
// those of NVIDIA's GPU Operator, GKE, and AMD's GPU operator.
func DefaultDCGMNamespaces(controller string) []string {
	out := []string{controller}
	for _, ns := range []string{"gpu-operator", "gke-managed-system", "kube-amd-gpu"} {
		if ns != controller {
			out = append(out, ns)
		}
	}
	return out
}

// Finder finds targets. Find is for one goroutine at a time; the other methods
// are safe for concurrent use.
type Finder struct {
	cfg  Config
	pods Pods
	log  *slog.Logger

	hosts   atomic.Pointer[map[netip.Addr]bool] // the nodes' addresses
	hostsAt time.Time                           // when they were listed; used by Find only

	gateways atomic.Pointer[map[string][]labels.Selector] // of readers, by namespace

	mu      sync.Mutex
	refused map[string]string // the logged reason why an exporter is not scraped, by target
}

// New makes a Finder. A nil log discards.
func New(cfg Config, pods Pods, log *slog.Logger) *Finder {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Finder{cfg: cfg, pods: pods, log: log}
}

// Find lists the targets: the exporters, with these fields, and the pods and gateways of the
// readers.
func (f *Finder) Find(now time.Time, fields gpu.FieldSet, readers []Reader) *List {
	targets := f.Agents(fields)
	for _, namespace := range f.cfg.DCGMNamespaces {
		targets = append(targets, f.exporters(KindDCGM, namespace, f.cfg.DCGM, fields)...)
	}
	readers = slices.DeleteFunc(readers, func(r Reader) bool { return !r.readsPods() && !f.readsGateway(&r) })
	f.noteGateways(readers)
	if len(readers) > 0 {
		f.refreshHosts(now)
	}
	out := &List{}
	targets = append(targets, f.podTargets(readers, out)...)
	out.Targets, out.Origins = targets, make(map[string]Origin, len(targets))
	for i := range targets {
		t := &targets[i]
		place := NodePlace(t.Labels.Node)
		if t.Kind == KindPod {
			place = PodPlace(t.Labels.Namespace, t.Labels.Pod)
		}
		out.Origins[t.Name] = Origin{place, t.Labels.Node, t.Pod, t.Port}
	}
	return out
}

// Agents lists the targets that are our agents, one per node.
func (f *Finder) Agents(fields gpu.FieldSet) []Target {
	return f.exporters(KindAgent, f.cfg.AgentNamespace, f.cfg.Agents, fields)
}

// IsExporter reports whether a pod is an agent or a dcgm-exporter.
func (f *Finder) IsExporter(pod *corev1.Pod) bool {
	set := labels.Set(pod.Labels)
	match := func(s labels.Selector) bool { return s.Matches(set) }
	return f.cfg.AgentNamespace == pod.Namespace && slices.ContainsFunc(f.cfg.Agents, match) ||
		slices.Contains(f.cfg.DCGMNamespaces, pod.Namespace) && slices.ContainsFunc(f.cfg.DCGM, match)
}

// noteGateways stores the selectors of the readers' gateways.
func (f *Finder) noteGateways(readers []Reader) {
	selectors := map[string][]labels.Selector{}
	for i := range readers {
		for j := range readers[i].Sources {
			if g := readers[i].Sources[j].Gateway; g != nil && f.cfg.Gateways {
				selectors[readers[i].Namespace] = append(selectors[readers[i].Namespace], g.Selectors...)
			}
		}
	}
	f.gateways.Store(&selectors)
}

// IsSource reports whether a pod may be scraped, beside those of the readers: an agent, a
// dcgm-exporter or a gateway.
func (f *Finder) IsSource(pod *corev1.Pod) bool {
	if f.IsExporter(pod) {
		return true
	}
	set := labels.Set(pod.Labels)
	known := f.gateways.Load()
	return known != nil && slices.ContainsFunc((*known)[pod.Namespace], func(s labels.Selector) bool { return s.Matches(set) })
}

// exporters lists the targets of one kind in a namespace, by the labels of their pods.
func (f *Finder) exporters(kind, namespace string, selectors []labels.Selector, fields gpu.FieldSet) []Target {
	if namespace == "" {
		return nil // "" would select all namespaces
	}
	job, rank := "gpupilot-agent", uint8(RankAgent)
	if kind == KindDCGM {
		job, rank = "dcgm-exporter", RankDCGM
	}
	var out []Target
	listed := map[string]bool{}
	for _, sel := range selectors {
		for _, pod := range f.pods.Select(namespace, sel) {
			name := kind + "/" + pod.Namespace + "/" + pod.Name
			if !Scrapable(pod) || listed[name] {
				continue
			}
			listed[name] = true
			u, err := f.endpoint(kind, pod, exporterPort(pod), "/metrics")
			if err != nil {
				f.logRefusal(name, err)
				continue
			}
			out = append(out, Target{
				Name: name, Pod: nameOf(pod), Kind: kind, UID: pod.UID, URL: u, Fields: fields,
				Labels: series.TargetLabels{Node: pod.Spec.NodeName, Instance: u.Host, Job: job, Rank: rank},
			})
		}
	}
	return out
}

func nameOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// Scrapable reports whether a pod runs, has an address and is not being deleted.
func Scrapable(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "" && pod.DeletionTimestamp == nil
}

// SameEndpoint reports whether a change of a pod leaves its scrape targets unchanged.
// old is nil for a new pod, and pod is nil for a deleted one.
func SameEndpoint(old, pod *corev1.Pod) bool {
	if old == nil || pod == nil {
		return old == pod
	}
	return Scrapable(old) == Scrapable(pod) && old.UID == pod.UID && old.Status.PodIP == pod.Status.PodIP &&
		old.Status.HostIP == pod.Status.HostIP && old.Spec.NodeName == pod.Spec.NodeName && maps.Equal(old.Labels, pod.Labels)
}

// exporterPort returns the port named metrics, else the first port, else 9400.
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

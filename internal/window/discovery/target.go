// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"net/netip"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// The kinds of targets.
const (
	KindAgent = "agent"
	KindDCGM  = "dcgm-exporter"
	KindPod   = "pod"
)

// The ranks of exporters on one node: an agent's claims have precedence over a
// dcgm-exporter's.
const (
	RankAgent = 0
	RankDCGM  = 1
)

// Target is one exposition to scrape.
type Target struct {
	Name    string // unique
	Pod     types.NamespacedName
	URL     url.URL
	TLS     *policy.TLS // of KindPod with https
	Port    Port        // of KindPod
	Kind    string      // KindAgent, KindDCGM or KindPod
	UID     types.UID   // of the pod of KindAgent and KindDCGM
	Labels  series.TargetLabels
	Fields  gpu.FieldSet       // of KindAgent and KindDCGM: those in use
	Named   *page.Named        // of KindAgent and KindDCGM: those in use of the GPUs of some namespaces
	Metrics []policy.PodMetric // of KindPod: those in use, sorted by their keys, each once
}

// Config selects the exporters, and the addresses that are scraped.
type Config struct {
	// Agents selects our agents in AgentNamespace, and DCGM the dcgm-exporters in
	// DCGMNamespaces, by pods that any of the selectors matches. Pods of other
	// namespaces are never exporters: otherwise everyone who may create pods could
	// affect every workload.
	Agents, DCGM   []labels.Selector
	AgentNamespace string
	DCGMNamespaces []string

	// PodNetworks contain the addresses of all pods that are not on the network of
	// their node; empty: any address. Loopback addresses must be listed. With
	// HostNetworkPods, pods on the network of their node are scraped for their own
	// metrics as well.
	PodNetworks     []netip.Prefix
	HostNetworkPods bool

	// Gateways has the gateways scraped whose series readers' queries read. It is not set
	// with a PromQL backend, which scrapes them itself.
	Gateways bool

	ExporterScheme string // of agents and dcgm-exporters: http (also if empty) or https
}

// Pods finds pods in memory. The pods are shared and must not be changed.
type Pods interface {
	// Select lists the pods that the selector matches, of all namespaces if namespace is empty.
	Select(namespace string, selector labels.Selector) []*corev1.Pod
}

// Reader is an autoscaler that may read its pods' own metrics.
type Reader struct {
	Namespace, Name string
	Created         metav1.Time
	Selector        labels.Selector // of its pods
	Sources         []policy.Source
}

// List is the result of Finder.Find.
type List struct {
	Targets  []Target
	Origins  map[string]Origin                 // by target
	Gateways map[types.NamespacedName]Gateways // of the readers
	Excess   map[string]bool                   // targets that are not scraped because their pod has MaxPerPod others
}

// Origin is where a target is.
type Origin struct {
	Place string // the node or the pod that its samples are about, see NodePlace and PodPlace
	Node  string
	Pod   types.NamespacedName
	Port  Port // of KindPod
}

// Gateways are the targets of a reader's gateways.
type Gateways struct {
	Targets []string // their names
	Problem string   // why a gateway has none; empty: each has one
}

// NodePlace is the place of samples about GPUs of a node.
func NodePlace(node string) string { return "node/" + node }

// PodPlace is the place of samples that a pod exposes about itself.
func PodPlace(namespace, pod string) string { return "pod/" + namespace + "/" + pod }

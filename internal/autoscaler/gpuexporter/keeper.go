// SPDX-License-Identifier: Apache-2.0

package gpuexporter

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

const (
	// resync is the longest time until another client's change of an owned object is
	// corrected, and until a changed ConfigMap with collectors is read.
	resync = 10 * time.Second
	// settle is the shortest time between two passes.
	settle = time.Second
)

// Agent is one agent that the controller has found.
type Agent struct {
	Pod  string // its name
	Node string
	URL  url.URL // of its metrics
}

// Report is an agent's report on its GPUs.
type Report struct {
	Error  string         // why no GPU can be read; empty: some can be, or there is none
	Models map[string]int // GPUs by model; a MIG instance is part of its GPU
	Down   int            // devices that cannot be read
	Lacks  []string       // lines of the collectors file that only DCGM may give here, and that have no value
	Why    string         // of Lacks
}

// Event is a Kubernetes Event about a GPUExporter.
type Event struct {
	About        corev1.ObjectReference
	Kind         string // Normal or Warning
	Reason, Note string
}

// Deps are the collaborators of a Keeper. Every field is required.
type Deps struct {
	Live   client.Reader // reads from the API server
	Client client.Client // writes, and reads Nodes from a cache
	// Installed reports whether the API server serves the kind of an object, and
	// AwaitInstalled waits until it does.
	Installed      func(client.Object) bool
	AwaitInstalled func(ctx context.Context, obj client.Object) error
	// Watch calls h for the objects of the kind of obj. It returns after the first list
	// was delivered, or with an error if ctx is done.
	Watch func(ctx context.Context, obj client.Object, h toolscache.ResourceEventHandler) error
	// Pods lists the pods of the agents' namespace that a selector matches.
	Pods func(labels.Selector) []*corev1.Pod
	// Agents are the agents that the controller scrapes, and Ask requests the report of one.
	Agents func() []Agent
	Ask    func(ctx context.Context, agent url.URL) (*Report, error)
	// Parse is the agent's parser of a list of metrics, and Defaults its own list of a
	// profile, as CSV.
	Parse    ParseCollectors
	Defaults func(profile string) string
	Record   func(Event) // does not block
	Log      *slog.Logger
}

// Keeper reconciles all GPUExporters of the cluster.
type Keeper struct {
	settings Settings
	deps     Deps
	wake     chan struct{} // of capacity 1

	active atomic.Bool // there is a GPUExporter

	mu      sync.Mutex
	reports map[string]*asked // by the agent's pod

	// The goroutine of Run owns these.
	idle    bool              // there was no GPUExporter in the last pass
	cleared map[string]bool   // nodes whose label was removed
	logged  map[string]string // by exporter: the last error
}

// New returns a Keeper. It does nothing until Run.
func New(settings Settings, deps Deps) *Keeper {
	return &Keeper{
		settings: settings, deps: deps, wake: make(chan struct{}, 1),
		reports: map[string]*asked{}, cleared: map[string]bool{}, logged: map[string]string{},
	}
}

// Wake requests a pass. It does not block.
func (k *Keeper) Wake() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// PodChanged requests a pass if the pod is an agent's or a probe's. pod is nil for a
// deleted one.
func (k *Keeper) PodChanged(old, pod *corev1.Pod) {
	if pod == nil {
		pod = old
	}
	if pod.Namespace == k.settings.Namespace && pod.Labels[LabelExporter] != "" {
		k.Wake()
	}
}

// Run reconciles all GPUExporters until ctx is done. Only the leader calls it.
func (k *Keeper) Run(ctx context.Context) {
	var asking sync.WaitGroup
	defer asking.Wait()
	asking.Go(func() { k.askLoop(ctx) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-timer.C:
		}
		k.pass(ctx)
		timer.Reset(resync)
		select {
		case <-ctx.Done():
			return
		case <-time.After(settle):
		}
	}
}

// Kind returns an empty GPUExporter. The kind is read unstructured, so that a malformed
// object affects no other.
func Kind() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("GPUExporter"))
	return u
}

// pass reconciles all GPUExporters once.
func (k *Keeper) pass(ctx context.Context) {
	if !k.deps.Installed(Kind()) {
		return
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("GPUExporterList"))
	if err := k.deps.Live.List(ctx, list); err != nil {
		k.log("", "GPUExporters cannot be read", err)
		return
	}
	k.log("", "", nil)
	k.active.Store(len(list.Items) > 0)
	if len(list.Items) == 0 && k.idle {
		return
	}
	var nodes corev1.NodeList
	if err := k.deps.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		k.log("nodes", "nodes cannot be read", err)
		return
	}
	k.log("nodes", "", nil)
	agentOf := k.agentOf(list.Items)
	var good []*v1alpha1.GPUExporter
	for i := range list.Items {
		u := &list.Items[i]
		e, err := decode(u)
		if e.DeletionTimestamp != nil {
			continue
		}
		if err == nil {
			good = append(good, e)
		}
		k.keep(ctx, e, err, nodes.Items, agentOf)
	}
	k.keepAccount(ctx, good)
	k.idle = k.keepLabels(ctx, good, nodes.Items) && len(list.Items) == 0
}

// agentOf returns, by node, the oldest of the GPUExporters that have an agent there.
func (k *Keeper) agentOf(exporters []unstructured.Unstructured) map[string]string {
	age := map[string]time.Time{}
	for i := range exporters {
		age[exporters[i].GetName()] = exporters[i].GetCreationTimestamp().Time
	}
	out := map[string]string{}
	for _, pod := range k.deps.Pods(labels.SelectorFromSet(labels.Set{LabelName: AgentName})) {
		name, node := pod.Labels[LabelExporter], pod.Spec.NodeName
		created, ok := age[name]
		if !ok || node == "" || pod.DeletionTimestamp != nil {
			continue
		}
		if first, taken := out[node]; !taken || cmp.Or(created.Compare(age[first]), strings.Compare(name, first)) < 0 {
			out[node] = name
		}
	}
	return out
}

// log logs an error once, and its end.
func (k *Keeper) log(about, what string, err error) {
	if ctxDone(err) {
		return
	}
	text := ""
	if err != nil {
		text = what + ": " + err.Error()
	}
	if k.logged[about] == text {
		return
	}
	k.logged[about] = text
	if err != nil {
		k.deps.Log.Warn(what, "about", about, "err", err)
	}
}

// Watch requests a pass at each change of a GPUExporter, once the
// API server serves the kind, and of a node.
func (k *Keeper) Watch(ctx context.Context) {
	if k.deps.AwaitInstalled(ctx, Kind()) != nil {
		return
	}
	wake := func(any) { k.Wake() }
	h := toolscache.ResourceEventHandlerFuncs{AddFunc: wake, UpdateFunc: func(_, _ any) { k.Wake() }, DeleteFunc: wake}
	if k.deps.Watch(ctx, Kind(), h) == nil {
		h.UpdateFunc = func(old, obj any) {
			if before, ok := old.(*corev1.Node); ok && sameGPUs(before, obj.(*corev1.Node)) {
				return // a heartbeat
			}
			k.Wake()
		}
		_ = k.deps.Watch(ctx, &corev1.Node{}, h) // the only possible error is that of ctx
	}
}

// sameGPUs reports whether two versions of a node have the same labels and resources, as
// far as the cache keeps them.
func sameGPUs(a, b *corev1.Node) bool {
	return maps.Equal(a.Labels, b.Labels) && equality.Semantic.DeepEqual(a.Status.Capacity, b.Status.Capacity)
}

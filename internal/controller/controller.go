// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/discovery"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/policy"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/series"
	"github.com/gpupilot/gpupilot/internal/webui"
)

// Config says what to look for and how often to decide. Zero values take the
// defaults.
type Config struct {
	Version string        // of the program, for the page
	Tick    time.Duration // the longest time between two decisions about a workload; 1 s
	MaxAge  time.Duration // above which a reading does not count; scale.DefaultMaxAge

	Discovery discovery.Config // which pods are scraped

	// Resources are names of resources that count GPU devices, beside those of
	// gpu.IsResource.
	Resources []string

	// QueriesPerNamespace bounds the different PromQL queries of one namespace; 100.
	QueriesPerNamespace int
}

// Pods finds pods in memory. The pods are shared and not to be changed.
type Pods interface {
	// Select lists the pods that the selector matches, of all namespaces if namespace is empty.
	Select(namespace string, selector labels.Selector) []*corev1.Pod
	// Get finds a pod by its name.
	Get(namespace, name string) (*corev1.Pod, bool)
}

// Deps are what a Controller works with.
type Deps struct {
	Client client.Client // reads Deployments and StatefulSets from a cache
	Live   client.Reader // asks the API server, whatever is cached
	Pods   Pods
	Store  *series.Store

	// Watch has h called for the objects of the kind of obj; it returns when
	// the first listing was delivered, with an error if ctx is done.
	Watch func(ctx context.Context, obj client.Object, h toolscache.ResourceEventHandler) error
	// Installed says whether the API server serves the kind of obj now.
	Installed func(obj client.Object) bool

	// Query asks the PromQL backend for one number; nil: there is no backend.
	Query func(ctx context.Context, promql string) (series.Sample, error)
	// LimitQuery returns the query that may run for a namespace, which reads only
	// that namespace's series unless the namespace is trusted. Its error is for
	// the query's author. nil: no query runs.
	LimitQuery func(namespace, promql string) (limited string, trusted bool, err error)

	Resolve gpu.Resolve
	Scrape  func([]discovery.Target) // says what is to be scraped from now on
	States  func() []webui.Target    // how the targets fare; Node is left to us
	Leading func() bool              // whether this replica may write
	Leader  func() string            // who may
	Record  func(Event)              // writes an Event; does not block
	Metrics prometheus.Registerer    // nil: no metrics
	Log     *slog.Logger             // nil discards
}

// Event is an Event about an object. Kind is Normal or Warning.
type Event struct {
	About                      corev1.ObjectReference
	Kind, Reason, Action, Note string
}

// shared is what every workload works with. It knows nothing of the workloads.
type shared struct {
	cfg     Config
	deps    Deps
	targets *targets
	claims  *claims
	devices *devices
	audit   *audit
	queries *queries
	meters  *meters
	recent  recent
	limits  limits

	finder     *discovery.Finder
	found      atomic.Pointer[discovery.List] // never nil
	rediscover chan struct{}
}

// Controller watches workloads and decides about them while Run runs.
type Controller struct {
	*shared
	uses *uses

	mu        sync.RWMutex
	workloads map[types.NamespacedName]*workload
	routes    map[string]map[*workload]struct{} // by place: a node or a pod
	running   sync.WaitGroup
}

// New makes a controller that does nothing before Run.
func New(cfg Config, deps Deps) *Controller {
	cfg.Tick = cmp.Or(cfg.Tick, time.Second)
	cfg.MaxAge = cmp.Or(cfg.MaxAge, scale.DefaultMaxAge)
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.LimitQuery == nil {
		deps.LimitQuery = func(string, string) (string, bool, error) { return "", false, errNoLimit }
	}
	c := &Controller{
		shared: &shared{
			cfg: cfg, deps: deps,
			targets: newTargets(deps.Client), claims: newClaims(), devices: newDevices(cfg.Resources),
			rediscover: make(chan struct{}, 1),
		},
		uses:      newUses(),
		workloads: map[types.NamespacedName]*workload{},
		routes:    map[string]map[*workload]struct{}{},
	}
	c.finder = discovery.New(cfg.Discovery, deps.Pods, deps.Log)
	c.found.Store(&discovery.List{})
	c.queries = newQueries(c)
	c.meters = newMeters(c, deps.Metrics)
	c.audit = newAudit(c)
	return c
}

// Run watches and decides until ctx is done. The pods must be there already.
// It asks the API server until it answers, and never gives up; ready is called
// when everything has been listed once.
func (c *Controller) Run(ctx context.Context, ready func()) error {
	defer c.running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.running.Go(func() { c.discover(ctx) })
	c.running.Go(func() { c.audit.run(ctx) })
	c.watchDevices(ctx)
	watches := []struct {
		obj client.Object
		h   toolscache.ResourceEventHandler
	}{
		{&appsv1.Deployment{}, changes(func(o client.Object, _ bool) { c.wakeTarget("apps", "Deployment", o) })},
		{&appsv1.StatefulSet{}, changes(func(o client.Object, _ bool) { c.wakeTarget("apps", "StatefulSet", o) })},
		{&autoscalingv2.HorizontalPodAutoscaler{}, changes(c.hpaChanged)},
		{autoscalerKind(), changes(func(o client.Object, gone bool) { c.autoscalerChanged(ctx, o, gone) })},
	}
	for _, w := range watches {
		if c.deps.Watch(ctx, w.obj, w.h) != nil {
			return nil // the only error is that of ctx, which is how this ends
		}
	}
	c.deps.Log.Info("watching GPUAutoscalers", "gpuautoscalers", c.count())
	ready()
	c.watchKEDA(ctx)
	<-ctx.Done()
	return nil
}

func (c *Controller) count() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.workloads)
}

// changes calls f for each event of an informer.
func changes(f func(obj client.Object, gone bool)) toolscache.ResourceEventHandler {
	is := func(obj any, gone bool) {
		if last, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
			obj = last.Obj
		}
		if o, ok := obj.(client.Object); ok {
			f(o, gone)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { is(obj, false) },
		UpdateFunc: func(_, obj any) { is(obj, false) },
		DeleteFunc: func(obj any) { is(obj, true) },
	}
}

// autoscalerKind names the kind GPUAutoscaler to a watch. It is watched as
// trees of values: a typed informer fails as a whole on the first object that
// does not decode.
func autoscalerKind() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("GPUAutoscaler"))
	return u
}

// autoscalerChanged starts, informs or ends the workload of a GPUAutoscaler.
func (c *Controller) autoscalerChanged(ctx context.Context, obj client.Object, gone bool) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return
	}
	a, badSpec, badStatus := policy.Decode(u)
	key := types.NamespacedName{Namespace: a.Namespace, Name: a.Name}
	flaws := &flaws{spec: badSpec, status: badStatus}
	c.mu.Lock()
	if w := c.workloads[key]; w != nil && !gone && sameSpec(w.object.Load(), a) {
		w.take(a, flaws) // its status, which we wrote
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	before, after := c.claims.setAutoscaler(a, gone || badSpec != nil || !c.isValid(a))
	c.mu.Lock()
	w := c.workloads[key]
	switch {
	case gone && w != nil:
		delete(c.workloads, key)
		c.unroute(w)
		w.cancel()
	case !gone && w != nil:
		w.take(a, flaws)
	case !gone && ctx.Err() == nil:
		w = newWorkload(ctx, c.shared, c.route, a)
		w.flaws.Store(flaws)
		c.workloads[key] = w
		c.running.Go(w.run)
		c.running.Go(w.status.run)
	}
	c.mu.Unlock()
	c.wakeClaimants(before)
	if after != before {
		c.wakeClaimants(after)
	}
	if w != nil {
		w.poke()
	}
	c.discoverSoon()
}

// isValid reports whether the object may claim a target: its spec is valid, its
// queries may run, and it is not being deleted.
func (c *Controller) isValid(a *v1alpha1.GPUAutoscaler) bool {
	compiled, err := policy.Compile(a, c.deps.Resolve)
	if err != nil || a.DeletionTimestamp != nil {
		return false
	}
	return !slices.ContainsFunc(compiled.Sources, func(s policy.Source) bool {
		if s.Kind != policy.Query {
			return false
		}
		_, _, err := c.deps.LimitQuery(a.Namespace, s.PromQL)
		return err != nil
	})
}

// sameSpec reports whether two versions of an object ask for the same.
func sameSpec(a, b client.Object) bool {
	return a.GetUID() == b.GetUID() && a.GetGeneration() == b.GetGeneration() && a.GetGeneration() != 0 &&
		(a.GetDeletionTimestamp() == nil) == (b.GetDeletionTimestamp() == nil)
}

func (c *Controller) hpaChanged(obj client.Object, gone bool) {
	if h, ok := obj.(*autoscalingv2.HorizontalPodAutoscaler); ok {
		ref := h.Spec.ScaleTargetRef
		claim := claimOf(h.Namespace, ref.APIVersion, ref.Kind, ref.Name)
		before := c.claims.set(owner{"HorizontalPodAutoscaler", h.Namespace, h.Name}, claim, gone)
		c.wakeClaimants(before)
		c.wakeClaimants(claim)
	}
}

func (c *Controller) wakeTarget(group, kind string, obj client.Object) {
	c.wakeClaimants(newClaim(group, kind, obj.GetNamespace(), obj.GetName()))
}

// wakeClaimants has the workloads with this target look again.
func (c *Controller) wakeClaimants(cl claim) {
	for _, a := range c.claims.autoscalers(cl) {
		c.mu.RLock()
		w := c.workloads[types.NamespacedName{Namespace: a.Namespace, Name: a.Name}]
		c.mu.RUnlock()
		if w != nil {
			w.poke()
		}
	}
}

// LeadershipChanged has every workload act, or cease to, at once.
func (c *Controller) LeadershipChanged() {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, w := range c.workloads {
		w.poke()
	}
}

// PodChanged is told of every change of a pod: old is nil for a new one, pod
// for one that is gone. It does not block.
func (c *Controller) PodChanged(old, pod *corev1.Pod) {
	if old != nil && (pod == nil || pod.UID != old.UID) {
		c.deps.Store.Forget(old.Namespace, old.Name, time.Now())
	}
	last := pod
	if pod == nil {
		last = old
	}
	if c.finder.IsExporter(last) && !discovery.SameEndpoint(old, pod) {
		c.discoverSoon()
	}
	set := labels.Set(last.Labels)
	c.mu.RLock()
	defer c.mu.RUnlock()
	for key, w := range c.workloads {
		if key.Namespace != last.Namespace {
			continue
		}
		if sel := w.selector.Load(); sel == nil || !(*sel).Matches(set) {
			continue
		}
		w.poke()
		if w.scrapesPods.Load() && !discovery.SameEndpoint(old, pod) {
			c.discoverSoon()
		}
	}
}

// Deliver is told that samples of a target are in the store, and has the
// workloads decide that have pods there. It does not block.
func (c *Controller) Deliver(target string, _ time.Time) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for w := range c.routes[c.found.Load().Places[target]] {
		w.poke()
	}
}

// route says at which places samples about w's pods arrive.
func (c *Controller) route(w *workload, places map[string]struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unroute(w)
	if c.workloads[w.key] != w {
		return // ended meanwhile
	}
	w.places = places
	for p := range places {
		if c.routes[p] == nil {
			c.routes[p] = map[*workload]struct{}{}
		}
		c.routes[p][w] = struct{}{}
	}
}

// unroute undoes route. c.mu is held.
func (c *Controller) unroute(w *workload) {
	for p := range w.places {
		delete(c.routes[p], w)
		if len(c.routes[p]) == 0 {
			delete(c.routes, p)
		}
	}
	w.places = nil
}

// SPDX-License-Identifier: Apache-2.0

// Package controller scales workloads: it determines the scrape targets, watches each
// GPUAutoscaler's target and pods, calls scale.Decide whenever new data has arrived,
// and writes the result.
//
// Each GPUAutoscaler has one goroutine that observes, decides and actuates, and
// another one that writes its status, so that a slow API server delays neither other
// objects nor the next decision. Every replica of the controller observes and
// decides; only the leader writes. A new leader therefore has its windows filled. A
// replica that has just started does not scale down before its window is covered, see
// scale.State.
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
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/aspect"
	"github.com/gpupilot/gpupilot/internal/autoscaler/explain"
	"github.com/gpupilot/gpupilot/internal/autoscaler/meters"
	"github.com/gpupilot/gpupilot/internal/autoscaler/shown"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/base/weight"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/trust"
	"github.com/gpupilot/gpupilot/internal/window/usage"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// Config holds the settings of a Controller. Zero values mean the defaults.
type Config struct {
	Version string        // of the program, for the page
	Tick    time.Duration // the longest time between two decisions about a workload; 1 s
	MaxAge  time.Duration // the age above which a reading does not count; scale.DefaultMaxAge

	Discovery discovery.Config // which pods are scraped

	CustomMetrics, ExternalMetrics bool // which metrics APIs are the controller's
}

// Pods finds pods in memory. The pods are shared and not to be changed.
type Pods interface {
	// Select lists the pods that the selector matches, of all namespaces if namespace is empty.
	Select(namespace string, selector labels.Selector) []*corev1.Pod
	// Get finds a pod by its name.
	Get(namespace, name string) (*corev1.Pod, bool)
}

// Deps holds the collaborators of a Controller. Writes may be nil, which means ForWrites, and Log, which discards.
type Deps struct {
	aspect.Deps
	Live   client.Reader // reads from the API server, not from a cache, before a workload is scaled
	Pods   Pods
	Scaler *target.Scaler
	Fields *usage.Fields // those in use, of which the controller holds those that it reads

	// Watch calls h for the objects of the kind of obj. It returns after the first
	// list was delivered, or with an error if ctx is done.
	Watch func(ctx context.Context, obj client.Object, h toolscache.ResourceEventHandler) error
	// AwaitInstalled waits until the API server serves the kind of obj. An error means
	// that ctx is done.
	AwaitInstalled func(ctx context.Context, obj client.Object) error

	Queries Queries // evaluates the query signals; nil: there is no backend
	// LimitQuery limits a query to the series of a namespace, unless the namespace is
	// trusted. Its error is shown to the query's author. nil: no query runs.
	LimitQuery func(namespace, promql string) (limited string, trusted bool, err error)
	// HoldSeries has the series of these metrics kept in the windows, whatever else
	// queries read: those of the gateways that presets read. nil: no query reads windows.
	HoldSeries func(names []string)
	Scrape     func([]discovery.Target)        // replaces the list of scrape targets
	States     func() []view.Target            // the state of each target; the controller fills in Node
	Described  func(namespace string) []string // the metrics on pages of a namespace's pods, as far as they are known; may be nil
	Leader     func() string                   // the identity of the leader
	Record     func(Event)                     // records an Event; does not block
	// ScaledObjectChanged is called for each change of KEDA's ScaledObjects; may be nil.
	ScaledObjectChanged func(obj *unstructured.Unstructured, gone bool)
	Metrics             prometheus.Registerer // nil: no metrics
	Programs            *weight.Counts        // counts the programs of objects that are refused for their weight; may be nil
	Minutes             Minutes               // of the history; nil: there is none
}

// Event is a Kubernetes Event about an object. Kind is Normal or Warning.
type Event struct {
	About                      corev1.ObjectReference
	Kind, Reason, Action, Note string
}

// shared holds the state that all workloads use. It has no reference to them.
type shared struct {
	cfg     Config
	deps    Deps
	rivals  *target.Rivals
	audit   *trust.Audit
	meters  *meters.Meters
	recent  shown.Log
	asked   explain.Asked
	failing failing
	hpas    *target.HPAs
	fleet   *aspect.Fleet              // what the aspects of all workloads share
	held    []string                   // names of gateways' metrics, see holdGateways; of the goroutine of discover
	asking  map[string][]queries.Owner // by namespace, see askQueries; of the goroutine of discover

	finder     *discovery.Finder
	discovered atomic.Pointer[discovery.List]                  // never nil
	overFields atomic.Pointer[map[types.NamespacedName]string] // never nil; see nameFields
	rediscover chan struct{}
}

// Controller watches workloads and decides about them while Run runs.
type Controller struct {
	*shared

	mu        sync.RWMutex
	workloads map[types.NamespacedName]*workload
	routes    map[string]map[*workload]struct{} // by place, which is a node or a pod
	running   sync.WaitGroup
}

// New makes a controller. Run starts it.
func New(cfg Config, deps Deps) *Controller {
	cfg.Tick = cmp.Or(cfg.Tick, time.Second)
	cfg.MaxAge = cmp.Or(cfg.MaxAge, scale.DefaultMaxAge)
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Queries == nil {
		deps.Queries = queries.NewScheduler(queries.SchedulerConfig{}, queries.SchedulerDeps{})
	}
	if deps.Writes == nil {
		deps.Writes = fair.NewSlots(fair.ForWrites())
	}
	if deps.LimitQuery == nil {
		deps.LimitQuery = func(string, string) (string, bool, error) { return "", false, errNoLimit }
	}
	c := &Controller{
		shared: &shared{
			cfg: cfg, deps: deps,
			rivals:     target.NewRivals(),
			hpas:       deps.Scaler.HPAs(deps.Live),
			fleet:      aspect.NewFleet(deps.Deps),
			rediscover: make(chan struct{}, 1),
		},
		workloads: map[types.NamespacedName]*workload{},
		routes:    map[string]map[*workload]struct{}{},
	}
	c.finder = discovery.New(cfg.Discovery, deps.Pods, deps.Log)
	c.discovered.Store(&discovery.List{})
	c.overFields.Store(&map[types.NamespacedName]string{})
	c.audit = trust.NewAudit(trust.AuditDeps{
		Store: deps.Store, Pods: deps.Pods, Devices: deps.Devices, Record: c.recordContradiction, Log: deps.Log,
	})
	c.meters = meters.New(meters.Deps{Leading: deps.Leading, Each: c.eachMetered, Excess: func() int { return len(c.discovered.Load().Excess) }})
	if deps.Metrics != nil {
		c.meters.Register(deps.Metrics)
		deps.Metrics.MustRegister(deps.Devices, c.audit)
	}
	return c
}

// Run watches and decides until ctx is done. Deps.Pods must be filled before. It
// retries until the API server answers, and calls ready after all kinds have been
// listed once.
func (c *Controller) Run(ctx context.Context, ready func()) error {
	defer c.running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.running.Go(func() { c.discover(ctx) })
	c.running.Go(func() { c.audit.Run(ctx) })
	c.running.Go(func() { c.sampleWorkloads(ctx) })
	c.running.Go(func() { c.fleet.Gates.Run(ctx) })
	c.running.Go(func() {
		if c.deps.Watch(ctx, &policyv1.PodDisruptionBudget{}, eventHandler(c.fleet.Disruptions.Changed)) == nil {
			c.fleet.Disruptions.SetListed()
		}
	})
	c.watchDevices(ctx)
	watches := []struct {
		obj client.Object
		h   toolscache.ResourceEventHandler
	}{
		{&appsv1.Deployment{}, eventHandler(func(o client.Object, _ bool) { c.wakeTarget("apps", "Deployment", o) })},
		{&appsv1.StatefulSet{}, eventHandler(func(o client.Object, _ bool) { c.wakeTarget("apps", "StatefulSet", o) })},
		{&autoscalingv2.HorizontalPodAutoscaler{}, eventHandler(c.hpaChanged)},
		{autoscalerKind(), eventHandler(func(u *unstructured.Unstructured, gone bool) { c.autoscalerChanged(ctx, u, gone) })},
	}
	for _, w := range watches {
		if c.deps.Watch(ctx, w.obj, w.h) != nil {
			return nil // the only possible error is that of ctx
		}
	}
	c.deps.Log.Info("watching GPUAutoscalers", "gpuautoscalers", len(c.allWorkloads()))
	ready()
	c.watchKEDA(ctx)
	<-ctx.Done()
	return nil
}

// watchDevices watches nodes, and resource claims once the API server serves them.
// Kinds that cannot be watched limit no exporter's claim.
func (c *Controller) watchDevices(ctx context.Context) {
	d := c.deps.Devices
	c.running.Go(func() {
		_ = c.deps.Watch(ctx, &corev1.Node{}, eventHandler(d.NodeChanged)) // the only possible error is that of ctx
	})
	c.running.Go(func() {
		kind := metav1.TypeMeta{APIVersion: resourcev1.SchemeGroupVersion.String(), Kind: "ResourceClaim"}
		if c.deps.AwaitInstalled(ctx, &resourcev1.ResourceClaim{TypeMeta: kind}) != nil {
			return
		}
		if c.deps.Watch(ctx, &resourcev1.ResourceClaim{}, eventHandler(d.ResourceClaimChanged)) == nil {
			_ = c.deps.Watch(ctx, &resourcev1.ResourceClaimTemplate{}, eventHandler(d.TemplateChanged))
		}
	})
}

// eventHandler returns a handler that calls f for each event of an informer.
func eventHandler[T client.Object](f func(obj T, gone bool)) toolscache.ResourceEventHandler {
	handle := func(obj any, gone bool) {
		if last, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
			obj = last.Obj
		}
		if o, ok := obj.(T); ok {
			f(o, gone)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { handle(obj, false) },
		UpdateFunc: func(_, obj any) { handle(obj, false) },
		DeleteFunc: func(obj any) { handle(obj, true) },
	}
}

// autoscalerKind returns an empty unstructured GPUAutoscaler. The kind is watched
// unstructured, because a typed informer stops at the first malformed object.
func autoscalerKind() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("GPUAutoscaler"))
	return u
}

// autoscalerChanged starts, updates or stops the workload of a GPUAutoscaler.
func (c *Controller) autoscalerChanged(ctx context.Context, u *unstructured.Unstructured, gone bool) {
	a, badSpec, badStatus := policy.Decode(u)
	key := types.NamespacedName{Namespace: a.Namespace, Name: a.Name}
	flaws := &flaws{spec: badSpec, status: badStatus}
	c.mu.Lock()
	if w := c.workloads[key]; w != nil && !gone && sameSpec(w.object.Load(), a) {
		w.setObject(a, flaws) // only the status changed, which this controller wrote
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	compiled, invalid := policy.Compile(a)
	before, after := c.rivals.SetAutoscaler(a, gone || badSpec != nil || invalid != nil || !c.mayScale(a, &compiled))
	if gone || invalid == nil {
		c.fleet.Pairs.Set(key, compiled.Pair, gone) // one whose spec is invalid stays what it was
	}
	c.mu.Lock()
	w := c.workloads[key]
	switch {
	case gone && w != nil:
		delete(c.workloads, key)
		c.unroute(w)
		w.cancel()
		last := w.object.Load() // a deletion tells the identity only
		c.running.Go(func() { c.restore(ctx, last, w) })
	case !gone && w != nil:
		w.setObject(a, flaws)
	case !gone && ctx.Err() == nil:
		w = newWorkload(ctx, c.shared, c.route, a)
		w.flaws.Store(flaws)
		c.workloads[key] = w
		c.running.Go(w.run)
		c.running.Go(w.status.run)
	}
	c.mu.Unlock()
	c.wakeAutoscalers(before)
	if after != before {
		c.wakeAutoscalers(after)
	}
	if w != nil {
		w.requestPass()
	}
	c.requestDiscovery()
}

// mayScale reports whether an object with a valid spec may have a target: its queries are
// allowed, and it is not being deleted.
func (c *Controller) mayScale(a *v1alpha1.GPUAutoscaler, compiled *policy.Compiled) bool {
	return a.DeletionTimestamp == nil && !slices.ContainsFunc(compiled.Sources, func(s policy.Source) bool {
		if s.Kind != policy.Query {
			return false
		}
		_, _, err := c.deps.LimitQuery(a.Namespace, s.PromQL)
		return err != nil
	})
}

// sameSpec reports whether two versions of an object have the same spec.
func sameSpec(a, b client.Object) bool {
	return a.GetUID() == b.GetUID() && a.GetGeneration() == b.GetGeneration() && a.GetGeneration() != 0 &&
		(a.GetDeletionTimestamp() == nil) == (b.GetDeletionTimestamp() == nil)
}

func (c *Controller) hpaChanged(h *autoscalingv2.HorizontalPodAutoscaler, gone bool) {
	before, after := c.rivals.SetHPA(h, shown.HPA(h, c.cfg.CustomMetrics, c.cfg.ExternalMetrics), gone)
	c.wakeAutoscalers(before)
	c.wakeAutoscalers(after)
}

// watchKEDA watches ScaledObjects once their CRD is installed.
func (c *Controller) watchKEDA(ctx context.Context) {
	c.running.Go(func() {
		if c.deps.AwaitInstalled(ctx, target.ScaledObject()) != nil {
			return
		}
		_ = c.deps.Watch(ctx, target.ScaledObject(), eventHandler(c.scaledObjectChanged)) // its only error is ctx's
	})
}

func (c *Controller) scaledObjectChanged(u *unstructured.Unstructured, gone bool) {
	if f := c.deps.ScaledObjectChanged; f != nil {
		f(u, gone)
	}
	rival, key := target.OfScaledObject(u)
	c.wakeAutoscalers(c.rivals.Set(rival, key, gone || target.IsPaused(u))) // those that may lose a rival
	c.wakeAutoscalers(key)
}

func (c *Controller) wakeTarget(group, kind string, obj client.Object) {
	c.wakeAutoscalers(target.NewKey(group, kind, obj.GetNamespace(), obj.GetName()))
}

// wakeAutoscalers requests a pass of the workloads with this target.
func (c *Controller) wakeAutoscalers(k target.Key) {
	for _, a := range c.rivals.Autoscalers(k) {
		if w := c.find(a.Namespace, a.Name); w != nil {
			w.requestPass()
		}
	}
}

// LeadershipChanged requests a pass of every workload, after this replica became or
// stopped being the leader.
func (c *Controller) LeadershipChanged() {
	for _, w := range c.allWorkloads() {
		w.requestPass()
	}
}

// PodChanged handles a change of a pod: old is nil for a new pod, pod is nil for a
// deleted one. It does not block.
func (c *Controller) PodChanged(old, pod *corev1.Pod) {
	c.fleet.Gates.PodChanged(old, pod)
	if old != nil && (pod == nil || pod.UID != old.UID) {
		c.deps.Store.Forget(old.Namespace, old.Name, time.Now())
	}
	last := pod
	if pod == nil {
		last = old
	}
	if c.finder.IsSource(last) && !discovery.SameEndpoint(old, pod) {
		c.requestDiscovery()
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
		w.requestPass()
		if w.plan.Load().scrapes() && !discovery.SameEndpoint(old, pod) {
			c.requestDiscovery()
		}
	}
}

// Deliver requests a pass of the workloads with pods at the place of a target, after
// its samples were stored. It does not block.
func (c *Controller) Deliver(target string, _ time.Time) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for w := range c.routes[c.discovered.Load().Origins[target].Place] {
		w.requestPass()
	}
}

// route sets the places whose samples wake w.
func (c *Controller) route(w *workload, places map[string]struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unroute(w)
	if c.workloads[w.key] != w {
		return // stopped meanwhile
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

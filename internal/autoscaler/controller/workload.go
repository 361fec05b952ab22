// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/aspect"
	"github.com/gpupilot/gpupilot/internal/autoscaler/meters"
	"github.com/gpupilot/gpupilot/internal/autoscaler/shown"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// member is what the parts of a workload share.
type member struct {
	shared *shared
	key    types.NamespacedName
	ctx    context.Context // the lifetime of the two goroutines that newWorkload's caller starts
}

func (m *member) record(a *v1alpha1.GPUAutoscaler, kind, reason, action, note string) {
	m.shared.deps.Record(Event{
		About: corev1.ObjectReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "GPUAutoscaler",
			Namespace: a.Namespace, Name: a.Name, UID: a.UID, ResourceVersion: a.ResourceVersion,
		},
		Kind: kind, Reason: reason, Action: action, Note: note,
	})
}

// workload runs the control loop of one GPUAutoscaler: observe, decide, actuate.
type workload struct {
	*member
	route  func(w *workload, places map[string]struct{}) // sets the places whose samples wake w
	cancel context.CancelFunc
	wake   chan struct{}
	status *statusWriter
	ended  chan struct{}       // closed when run has ended
	places map[string]struct{} // as in Controller.routes; guarded by Controller.mu

	object   atomic.Pointer[v1alpha1.GPUAutoscaler]
	plan     atomic.Pointer[plan]            // nil: the spec is invalid, or not compiled yet
	selector atomic.Pointer[labels.Selector] // nil: the target is not known
	flaws    atomic.Pointer[flaws]           // of object

	// The fields below are owned by run's goroutine.
	compiled *v1alpha1.GPUAutoscaler // the object that plan and invalid were compiled from
	invalid  error
	seen     seen
	engine   engine
	aspects  []aspect.Aspect
	actuator actuator
	health   health
	published
}

// seen is what a workload knows of its target.
type seen struct {
	target       target.Key
	pods         []*corev1.Pod       // at the last decision
	routed       map[string]struct{} // the places of their samples
	servingSince time.Time           // when its first replica began to serve; zero: none serves
}

// engine is the state of scale.Decide between two passes.
type engine struct {
	stored    *v1alpha1.Memory // by the previous leader; nil after the first pass
	state     scale.State
	suspended bool // the last pass made no decision
}

// published is what others see of a workload.
type published struct {
	mu       sync.Mutex
	shown    view.Workload
	metered  meters.Workload // its Conditions are empty before the first pass
	history  shown.Points
	spans    shown.Spans
	inputs   []view.Input    // of the last decision
	readings []history.Value // of the last decision; reused
}

// flaws are the decoding errors of a stored object.
type flaws struct{ spec, status error }

// plan is a GPUAutoscaler in the engine's terms.
type plan struct {
	policy.Compiled
	fields gpu.FieldSet // that its signals read
	// podMetrics are the metrics whose series its signals only add up per pod, so that the
	// metrics API can serve them by name.
	podMetrics  []string
	scrapesPods bool          // a signal is read of pods
	queries     []queries.Key // parallel to Sources; empty for other kinds
	metrics     []meters.SignalNames
}

// scrapes reports whether a plan, if there is one, reads signals of pods.
func (p *plan) scrapes() bool { return p != nil && p.scrapesPods }

func newWorkload(ctx context.Context, s *shared, route func(*workload, map[string]struct{}), a *v1alpha1.GPUAutoscaler) *workload {
	w := &workload{
		member: &member{shared: s, key: types.NamespacedName{Namespace: a.Namespace, Name: a.Name}},
		route:  route, wake: make(chan struct{}, 1), ended: make(chan struct{}),
		aspects: s.fleet.Of(a), engine: engine{stored: a.Status.Memory},
	}
	w.ctx, w.cancel = context.WithCancel(ctx)
	w.actuator, w.health = actuator{member: w.member, published: &w.published, advised: -1}, health{member: w.member}
	w.object.Store(a)
	w.flaws.Store(&flaws{})
	w.status = newStatusWriter(w)
	if t := a.Status.LastScaleTime; t != nil {
		w.actuator.scaledAt = t.Time
	}
	w.shown = view.Workload{
		Namespace: a.Namespace, Name: a.Name, Kind: a.Spec.ScaleTargetRef.Kind, Target: a.Spec.ScaleTargetRef.Name,
	}
	return w
}

// setObject replaces the object. It stores the flaws first, because compile reads them
// once for each generation of the object.
func (w *workload) setObject(a *v1alpha1.GPUAutoscaler, f *flaws) {
	w.flaws.Store(f)
	w.object.Store(a)
}

// requestPass wakes the workload for a decision. It does not block.
func (w *workload) requestPass() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// A workload pauses after each decision for idleFactor times the decision's duration,
// at most maxIdle. This bounds its CPU time if decisions take long, as with thousands
// of pods. Data that arrives meanwhile is used by the next decision.
const (
	idleFactor = 20
	maxIdle    = 500 * time.Millisecond
)

// run makes a pass whenever one is requested, and at least once per tick.
func (w *workload) run() {
	defer close(w.ended)
	defer w.cancel()
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-w.wake:
		case <-tick.C:
		}
		pause := w.guarded(time.Now())
		tick.Reset(w.shared.cfg.Tick)
		select {
		case <-w.ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// compile compiles the spec if it has changed.
func (w *workload) compile(a *v1alpha1.GPUAutoscaler) {
	before := w.compiled
	w.compiled = a
	if before != nil && before.Generation == a.Generation && before.UID == a.UID && a.Generation != 0 {
		return
	}
	compiled, err := policy.Compile(a)
	_ = w.shared.deps.Programs.Note(err)
	var limited []queries.Key
	if err == nil {
		limited, err = w.shared.limitQueries(a, compiled.Sources)
	}
	if f := w.flaws.Load(); f.spec != nil {
		err = fmt.Errorf("the spec cannot be read: %w", f.spec)
	}
	if w.invalid, w.health.inconsistency = nil, false; err != nil {
		w.invalid = errors.New(excerpt.Of(err.Error(), maxMessage)) // the error quotes values of any length
	}
	if err != nil {
		w.plan.Store(nil)
		w.shared.requestDiscovery() // stops its queries and scrapes
		return
	}
	p := &plan{Compiled: compiled, queries: limited, metrics: meters.NamesOf(&compiled.Policy)}
	for i := range p.Sources {
		p.podMetrics = append(p.podMetrics, p.Sources[i].PlainNames()...)
		switch p.Sources[i].Kind {
		case policy.Pods:
			p.scrapesPods = true
		case policy.GPU:
			if at, ok := gpu.IndexOf(p.Sources[i].Field); ok {
				p.fields.Add(at)
			}
		}
	}
	for _, f := range aspect.ActivityFields {
		if at, ok := gpu.IndexOf(f); ok && p.Policy.Idle.After > 0 {
			p.fields.Add(at)
		}
	}
	if p.Policy.MaxAge == 0 {
		p.Policy.MaxAge = w.shared.cfg.MaxAge
	}
	w.plan.Store(p)
	w.seen.routed = nil
	w.shared.requestDiscovery()
}

// trackTarget stores the current target and selector. The state is reset if the target
// is another one.
func (w *workload) trackTarget(r *pass) {
	t := r.Target
	if t.Key != w.seen.target {
		w.shared.deps.Scaler.Forget(w.seen.target)
		if w.seen.target != (target.Key{}) {
			w.engine.state = scale.State{} // it belongs to another target
			for _, x := range w.aspects {
				x.Forget(&r.Pass)
			}
		}
		w.seen.target = t.Key
	}
	if old := w.selector.Load(); old == nil || (*old).String() != t.Selector.String() {
		w.selector.Store(&t.Selector)
		w.shared.requestDiscovery()
	}
}

// podsProblem returns the reason why a pods signal cannot be scraped from these pods:
// the spec does not match their ports, or their network is not allowed.
func (w *workload) podsProblem(p *plan, pods []*corev1.Pod) string {
	for i := range p.Sources {
		src := &p.Sources[i]
		if src.Kind != policy.Pods {
			continue
		}
		for j, pod := range pods {
			if j == 0 { // all pods have the same ports
				if _, err := discovery.PodPort(pod, src.Port); err != nil {
					return err.Error()
				}
			}
			if !discovery.Scrapable(pod) {
				continue
			}
			e, err := w.shared.finder.PodEndpoint(pod, src)
			if err != nil {
				return err.Error()
			}
			if w.shared.discovered.Load().Excess[e.Name] {
				return fmt.Sprintf("pod %s already has %d ports and paths that are scraped for older GPUAutoscalers, which is the limit; use one of these", pod.Name, discovery.MaxPerPod)
			}
		}
	}
	return ""
}

// updateRoutes registers the places of these pods' samples with the controller.
func (w *workload) updateRoutes(pods []*corev1.Pod) {
	if w.seen.routed != nil && slices.Equal(w.seen.pods, pods) {
		return
	}
	w.seen.pods = pods
	places := make(map[string]struct{}, len(pods))
	for _, pod := range pods {
		if pod.Spec.NodeName != "" {
			places[discovery.NodePlace(pod.Spec.NodeName)] = struct{}{}
		}
		if w.plan.Load().scrapesPods {
			places[discovery.PodPlace(pod.Namespace, pod.Name)] = struct{}{}
		}
	}
	if w.seen.routed == nil || !maps.Equal(places, w.seen.routed) {
		w.seen.routed = places
		w.route(w, places)
	}
}

// publish makes the pass visible: to the page, to /metrics and in the status.
func (w *workload) publish(r *pass) {
	w.show(r)
	w.status.enqueue(r)
}

// show shows a pass to viewers and to /metrics.
func (w *workload) show(r *pass) {
	now, judged := viewWorkload(r), conditionsOf(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shown, w.metered.Conditions = now, judged
	for i := range r.parts {
		if f := r.parts[i].Metrics; f != nil {
			f(&w.metered)
		}
	}
	w.spans.Observe(r.At, shown.SpansOf(judged, now.Schedules, r.Decision))
	if d := r.Decision; d != nil {
		w.history.Add(d)
		w.inputs = shown.Inputs(d)
		w.metered.RecordDecision(d, &r.plan.Policy, r.plan.metrics, r.requests, &r.State)
		w.recordReading(r)
	} else {
		w.metered.Undecided()
	}
}

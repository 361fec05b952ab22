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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/discovery"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/policy"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/series"
	"github.com/gpupilot/gpupilot/internal/webui"
)

// workload is one GPUAutoscaler: it observes, decides and actuates.
type workload struct {
	shared *shared
	route  func(w *workload, places map[string]struct{}) // has samples of these places wake w
	key    types.NamespacedName
	ctx    context.Context // the lifetime of the two goroutines that newWorkload's caller starts
	cancel context.CancelFunc
	wake   chan struct{}
	status *statusWriter
	places map[string]struct{} // as Controller.routes has it; guarded by Controller.mu

	object      atomic.Pointer[v1alpha1.GPUAutoscaler]
	plan        atomic.Pointer[plan]            // nil: its spec is invalid, or it has not been looked at
	selector    atomic.Pointer[labels.Selector] // nil: its target is not known
	scrapesPods atomic.Bool
	flaws       atomic.Pointer[flaws] // of object

	// What follows belongs to run's goroutine.
	compiled *v1alpha1.GPUAutoscaler // what plan and invalid are of
	invalid  error
	memory   *v1alpha1.Memory // of the controller before us, until the first pass
	state    scale.State
	startup  startup
	pods     []*corev1.Pod       // at the last pass
	routed   map[string]struct{} // where samples about them arrive
	claim    claim
	scaled   time.Time // when we last changed the replicas
	advised  int32     // the replicas that were last advised, -1 for none
	advice   time.Time // when
	pause    backoff   // after writes that failed
	told     string    // the refusal that the last Event was about
	idle     bool      // the last pass decided nothing
	wasteful bool      // the Event about signals that work against one another was recorded
	outage   outage
	doubted  bool      // an exporter contradicts the API server about the pods, and an Event says so
	serving  time.Time // since when it has had replicas that serve; zero: it has none

	mu      sync.Mutex
	shown   webui.Workload
	counts  counts
	judged  []metav1.Condition // empty before the first pass
	history history
}

// flaws say what of a stored object could not be read.
type flaws struct{ spec, status error }

// plan is a GPUAutoscaler in the engine's terms.
type plan struct {
	policy.Compiled
	fields  gpu.FieldSet // that its signals read
	queries []queryKey   // parallel to Sources; of those that are queries
}

// counts are a workload's replicas for /metrics; ok is false before the first decision.
type counts struct {
	current, desired, serving, starting, unschedulable int32
	ok                                                 bool
}

func newWorkload(ctx context.Context, s *shared, route func(*workload, map[string]struct{}), a *v1alpha1.GPUAutoscaler) *workload {
	w := &workload{
		shared: s, route: route, key: types.NamespacedName{Namespace: a.Namespace, Name: a.Name},
		wake: make(chan struct{}, 1), advised: -1,
	}
	w.ctx, w.cancel = context.WithCancel(ctx)
	w.object.Store(a)
	w.flaws.Store(&flaws{})
	w.status = newStatusWriter(w)
	w.startup.restore(a.Status.Startup)
	w.memory = a.Status.Memory
	if t := a.Status.LastScaleTime; t != nil {
		w.scaled = t.Time
	}
	w.shown = webui.Workload{
		Namespace: a.Namespace, Name: a.Name, Kind: a.Spec.ScaleTargetRef.Kind, Target: a.Spec.ScaleTargetRef.Name,
	}
	return w
}

// take replaces the object. The flaws come first: compile reads them once for
// each generation of the object.
func (w *workload) take(a *v1alpha1.GPUAutoscaler, f *flaws) {
	w.flaws.Store(f)
	w.object.Store(a)
}

// poke has the workload decide now. It does not block.
func (w *workload) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// The share of its time that a workload may spend on deciding is bounded: one
// whose decisions take long, because it has thousands of pods, takes in what
// arrives meanwhile with the next one.
const (
	idleShare  = 20
	longestGap = 500 * time.Millisecond
)

// run decides whenever it is poked, and at the latest every tick.
func (w *workload) run() {
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
		spent := w.pass(time.Now())
		tick.Reset(w.shared.cfg.Tick)
		select {
		case <-w.ctx.Done():
			return
		case <-time.After(min(idleShare*spent, longestGap)):
		}
	}
}

// report is what one pass came to.
type report struct {
	at       time.Time
	object   *v1alpha1.GPUAutoscaler
	target   *target // nil: not found
	plan     *plan   // nil: invalid
	decision *scale.Decision
	able     verdict
	unread   string          // why a pods signal cannot be read, where that is plain
	failed   string          // why a query has no new answer
	limited  *series.Limited // a target with samples of its pods that a bound or the memory limit applies to
	serving  int32           // of the target's pods, where nothing was decided
	starting int32
	early    bool // the first replica serves for so short a time that its values may yet come
	pending  []v1alpha1.PendingStatus
	learned  *v1alpha1.LearnedStartup
	scaled   time.Time
	state    scale.State

	contradictions []string // by exporters about the pods, see audit
}

// verdict is a condition in the making. An empty reason means that all is well.
type verdict struct{ reason, message string }

// pass observes, decides and actuates once, and says how long it thought.
func (w *workload) pass(now time.Time) (spent time.Duration) {
	a := w.object.Load()
	r := &report{at: now, object: a}
	if w.memory != nil {
		w.state, w.memory = recall(w.memory, now), nil
	}
	w.compile(a)
	r.plan = w.plan.Load()
	t, err := w.shared.targets.resolve(w.ctx, a.Namespace, a.Spec.ScaleTargetRef, false)
	if w.ctx.Err() != nil {
		return 0
	}
	if err == nil {
		r.target = &t
		w.follow(&t)
	}
	if r.able = w.obstacle(a, &t, err); r.able.reason != "" {
		w.idle = true
		if r.able.reason != reasonUnreadable {
			// Others may set the replicas meanwhile, and no signal is watched. What
			// was learned outlives it; the window has to be covered anew.
			w.state = unwatched(w.state)
		}
		if err == nil {
			r.serving, r.starting = w.count(&t)
		}
	} else {
		spent = w.decide(r, now)
	}
	r.learned, r.scaled, r.state = w.startup.learned(), w.scaled, w.state
	r.contradictions = w.shared.audit.about(w.pods)
	r.limited = w.limited(now)
	w.refuse(r)
	w.watchSignals(r)
	w.watchSources(r)
	w.warnOfWaste(r)
	w.publish(r)
	return spent
}

// compile translates the spec, if it is not the one that was translated.
func (w *workload) compile(a *v1alpha1.GPUAutoscaler) {
	before := w.compiled
	w.compiled = a
	if before != nil && before.Generation == a.Generation && before.UID == a.UID && a.Generation != 0 {
		return
	}
	compiled, err := policy.Compile(a, w.shared.deps.Resolve)
	var limited []queryKey
	if err == nil {
		limited, err = w.shared.queries.limit(a, compiled.Sources)
	}
	if f := w.flaws.Load(); f.spec != nil {
		err = fmt.Errorf("the spec cannot be read: %w", f.spec)
	}
	if w.invalid, w.wasteful = nil, false; err != nil {
		w.invalid = errors.New(clip(err.Error(), maxMessage)) // it quotes the values
	}
	if err != nil {
		w.plan.Store(nil)
		w.scrapesPods.Store(false)
		w.shared.discoverSoon() // it asks and scrapes nothing any more
		return
	}
	p := &plan{Compiled: compiled, queries: limited}
	scrapes := false
	for i := range p.Sources {
		switch p.Sources[i].Kind {
		case policy.Pods:
			scrapes = true
		case policy.GPU:
			if at, ok := gpu.IndexOf(p.Sources[i].Field); ok {
				p.fields.Add(at)
			}
		}
	}
	if p.Policy.MaxAge == 0 {
		p.Policy.MaxAge = w.shared.cfg.MaxAge
	}
	w.plan.Store(p)
	w.scrapesPods.Store(scrapes)
	w.routed = nil
	w.shared.discoverSoon()
}

// follow takes note of which target and which pods it is about.
func (w *workload) follow(t *target) {
	if t.claim != w.claim {
		w.shared.targets.forget(w.claim)
		if w.claim != (claim{}) {
			w.state, w.startup = scale.State{}, startup{} // they are of another workload
		}
		w.claim = t.claim
	}
	if old := w.selector.Load(); old == nil || (*old).String() != t.selector.String() {
		w.selector.Store(&t.selector)
		w.shared.discoverSoon()
	}
}

// obstacle is what keeps the workload from being decided about. err is of the
// attempt to find its target.
func (w *workload) obstacle(a *v1alpha1.GPUAutoscaler, t *target, err error) verdict {
	switch {
	case a.DeletionTimestamp != nil:
		return verdict{reasonDeleting, "the GPUAutoscaler is being deleted: it does not set replicas any more"}
	case w.invalid != nil:
		return verdict{reasonInvalid, w.invalid.Error()}
	case errors.Is(err, errNoTarget):
		return verdict{reasonNoTarget, err.Error()}
	case err != nil:
		return verdict{reasonUnreadable, err.Error()}
	}
	if o, owned := w.shared.claims.rival(a, t.claim); owned {
		return verdict{reasonOwned, t.String() + " is already scaled by " + o.String() +
			"; delete one of the two, or set actuation: Advise to only look on"}
	}
	return verdict{}
}

// count says what the target's pods are worth, whatever the spec says.
func (w *workload) count(t *target) (serving, starting int32) {
	for _, pod := range w.shared.deps.Pods.Select(w.key.Namespace, t.selector) {
		if Finished(pod) {
			continue
		}
		switch phase, _ := PhaseOf(pod); phase {
		case scale.Serving:
			serving++
		case scale.Starting:
			starting++
		}
	}
	return serving, starting
}

// decide is the pass of a workload in good order.
func (w *workload) decide(r *report, now time.Time) (spent time.Duration) {
	began := time.Now()
	t, p := r.target, r.plan
	pods := w.shared.deps.Pods.Select(w.key.Namespace, t.selector)
	w.startup.see(pods)
	w.settle(pods)
	pol := p.Policy
	pol.GPUsPerReplica = w.shared.devices.perReplica(t, pods)
	if l := w.startup.learned(); l != nil && pol.Startup == 0 {
		pol.Startup = time.Duration(l.P95Seconds) * time.Second
	}
	r.unread, r.pending = w.unreadable(p, pods), pendingOf(pods)
	obs := observe(t.replicas, pods, p.Sources, vetted{w.shared.deps.Store, w.shared.devices}, now, pol.MaxAge)
	obs.Totals, r.failed = w.shared.queries.totals(w.key.Namespace, p)
	if gap := now.Sub(w.state.DecidedAt); w.idle || gap > w.shared.longestPause() {
		w.state = resumed(w.state, gap)
	}
	w.idle = false
	before := w.state
	d, after := scale.Decide(pol, obs, before, now)
	spent = time.Since(began)
	w.shared.meters.decided(&d, spent)
	w.state, r.decision = after, &d
	r.early = w.isEarly(&d, now, pol.MaxAge)
	switch {
	case !d.Changes():
		w.advised = -1
	case p.Actuation == v1alpha1.ActuationAdvise:
		w.advise(t, &d)
	case w.shared.deps.Leading():
		w.actuate(r, &attempt{policy: pol, obs: obs, before: before, pods: pods, now: now})
	}
	return spent
}

// isEarly says whether the first replicas have served, or been watched, for
// less than maxAge: their first values are still on the way.
func (w *workload) isEarly(d *scale.Decision, now time.Time, maxAge time.Duration) bool {
	if d.Serving == 0 {
		w.serving = time.Time{}
		return false
	}
	if w.serving.IsZero() {
		w.serving = now
	}
	return now.Sub(w.serving) < maxAge
}

// unreadable says why a pods signal cannot be scraped from these pods, if the
// spec does not fit them or they are where nothing is scraped.
func (w *workload) unreadable(p *plan, pods []*corev1.Pod) string {
	for i := range p.Sources {
		src := &p.Sources[i]
		if src.Kind != policy.Pods {
			continue
		}
		for j, pod := range pods {
			if j == 0 { // in their ports one is like the other
				if _, err := discovery.PodPort(pod, src.Port); err != nil {
					return err.Error()
				}
			}
			if !discovery.Scrapable(pod) {
				continue
			}
			_, port, err := w.shared.finder.PodEndpoint(pod, src)
			if err != nil {
				return err.Error()
			}
			if w.shared.found.Load().Excess[discovery.PodTargetName(pod, port, src.Path)] {
				return fmt.Sprintf("of pod %s %d other ports and paths are scraped for older GPUAutoscalers, and no more than that; use one of these", pod.Name, discovery.MaxPerPod)
			}
		}
	}
	return ""
}

// settle tells the controller where samples about these pods arrive.
func (w *workload) settle(pods []*corev1.Pod) {
	if w.routed != nil && slices.Equal(w.pods, pods) {
		return
	}
	w.pods = pods
	places := make(map[string]struct{}, len(pods))
	for _, pod := range pods {
		if pod.Spec.NodeName != "" {
			places[discovery.NodePlace(pod.Spec.NodeName)] = struct{}{}
		}
		if w.scrapesPods.Load() {
			places[discovery.PodPlace(pod.Namespace, pod.Name)] = struct{}{}
		}
	}
	if w.routed == nil || !maps.Equal(places, w.routed) {
		w.routed = places
		w.route(w, places)
	}
}

// publish makes the pass visible: to the page, to /metrics and in the status.
func (w *workload) publish(r *report) {
	shown, judged := show(r), conditionsOf(r)
	w.mu.Lock()
	w.shown, w.judged = shown, judged
	if d := r.decision; d != nil {
		w.counts = counts{d.Current, d.Replicas, d.Serving, d.Starting, d.Unschedulable, true}
		w.history.add(d)
	} else {
		w.counts.ok = false
	}
	w.mu.Unlock()
	w.status.offer(r)
}

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/aspect"
	"github.com/gpupilot/gpupilot/internal/autoscaler/memory"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/history"
)

// report is the result of one pass.
type report struct {
	at           time.Time
	object       *v1alpha1.GPUAutoscaler
	target       *target.Target // nil: not found
	plan         *plan          // nil: invalid
	decision     *scale.Decision
	obstacle     verdict
	podsProblem  string // why a pods signal cannot be scraped, if the spec or the pods' network is the reason
	unread       string // where a signal that has no value is read of the pods, and what was found there; empty: each has one
	queryProblem string // why a query has no new answer; empty: none has a problem
	noRequests   string // which query is 0/0; empty: none is
	serving      int32  // the target's serving pods, if no decision was made
	starting     int32
	early        bool // the first replica has just begun to serve, and its first values may be missing
	pending      []v1alpha1.PendingStatus
	hpa          *v1alpha1.OwnedHPA
	state        scale.State
	pods         []*corev1.Pod // at the last decision
	requests     []float64     // requests/s of each signal; NaN: unknown
	parts        []aspect.Part // of the aspects, in their order

	contradictions []string // of exporters about the pods, see trust.Audit
}

// pass observes, decides and actuates once, and returns the duration of the decision.
func (w *workload) pass(now time.Time) (spent time.Duration) {
	a := w.object.Load()
	r := &report{at: now, object: a}
	w.engine.restore(now)
	w.compile(a)
	r.plan = w.plan.Load()
	p := &pass{Pass: aspect.Pass{Key: w.key, At: now, Object: a}, r: r}
	if r.plan != nil {
		p.Plan = &r.plan.Compiled
	}
	t, err := w.shared.deps.Scaler.Resolve(w.ctx, a.Namespace, a.Spec.ScaleTargetRef, false)
	if w.ctx.Err() != nil {
		return 0
	}
	if err == nil {
		r.target, p.Target = &t, &t
		w.trackTarget(p)
	}
	w.actuator.follow(a)
	if r.obstacle = w.findObstacle(a, &t, err); r.obstacle.reason != "" {
		w.engine.suspended = true
		if r.obstacle.lasts() {
			// Others may set the replicas meanwhile, and no signal is observed. Learned
			// values are kept; the window starts again.
			w.engine.state = memory.ClearWindow(w.engine.state)
			w.actuator.removeHPA(r, true)
		}
		if err == nil {
			r.serving, r.starting = w.countPods(&t)
		}
	} else {
		spent = w.decide(p)
	}
	w.actuator.last, r.hpa = r.decision, w.actuator.hpa.Status(a.Name)
	r.state, r.pods, r.parts = w.engine.state, w.seen.pods, []aspect.Part{w.actuator.part(r)}
	r.contradictions = w.shared.audit.Contradictions(r.pods)
	w.health.watch(r)
	w.report(p)
	w.publish(r)
	return spent
}

// findObstacle returns the reason why no decision can be made, if there is one. err is
// the error of resolving the target.
func (w *workload) findObstacle(a *v1alpha1.GPUAutoscaler, t *target.Target, err error) verdict {
	switch {
	case a.DeletionTimestamp != nil:
		return verdict{reasonDeleting, "the GPUAutoscaler is being deleted and no longer sets replicas"}
	case w.invalid != nil:
		return verdict{reasonInvalid, w.invalid.Error()}
	case errors.Is(err, target.ErrNotFound):
		return verdict{reasonNoTarget, err.Error()}
	case err != nil:
		return verdict{reasonUnreadable, err.Error()}
	}
	if rival, ok := w.shared.rivals.Of(a, t.Key, w.actuator.hpa.Owned()...); ok {
		return verdict{reasonOwned, t.String() + " is already scaled by " + rival.String() +
			"; delete one of the two, or set actuation: Advise to get decisions without scaling"}
	}
	return verdict{}
}

// report has the aspects report a pass, and records the Events that are due.
func (w *workload) report(p *pass) {
	r := p.r
	p.Target, p.Decision, p.State, p.Blocked, p.Places, p.Signals = r.target, r.decision, r.state, r.blocked(), w.seen.routed, signalsCondition(r)
	for _, x := range w.aspects {
		part := x.Report(&p.Pass)
		for _, n := range part.Notices {
			w.record(r.object, n.Kind, n.Reason, n.Action, n.Note)
		}
		r.parts = append(r.parts, part)
	}
}

// pass is one pass, with what a repeated decision needs.
type pass struct {
	aspect.Pass
	r      *report
	before scale.State
}

// decide makes the decision of a pass for a workload without an obstacle.
func (w *workload) decide(p *pass) (spent time.Duration) {
	began, r, now := time.Now(), p.r, p.At
	t, plan := r.target, r.plan
	p.Units = replica.UnitsOf(w.shared.deps.Pods, w.key.Namespace, t.Selector)
	pods := p.Units.Pods
	w.updateRoutes(p.Units.All())
	pol := &p.Policy
	*pol = plan.Policy
	pol.GPUsPerReplica = w.shared.deps.Devices.PerReplica(w.key.Namespace, &t.Template, &p.Units)
	r.podsProblem, r.pending = w.podsProblem(plan, pods), replica.Pending(pods)
	p.Reader = w.shared.readerAt(now, pol.MaxAge)
	p.Tokens = func(signal int) []history.Metric { return plan.metrics[signal].Tokens }
	p.UpToDate = func(ctx context.Context) bool { return w.actuator.isUpToDate(ctx, r) }
	obs := &p.Observation
	*obs = p.Reader.Observe(t.Replicas, &p.Units, plan.Sources)
	obs.Totals, r.queryProblem, r.noRequests = w.shared.totals(w.key, r.object.Spec.Signals, plan)
	for _, x := range w.aspects {
		x.Prepare(&p.Pass)
	}
	p.before = w.engine.resume(now, w.shared.maxPause())
	d, after := scale.Decide(*pol, *obs, p.before, now)
	spent = time.Since(began)
	w.shared.meters.RecordDecision(&d, spent)
	p.State, p.Decision, r.decision, r.requests = after, &d, &d, requestRates(obs)
	r.early = w.seen.isEarly(&d, now, pol.MaxAge)
	for _, x := range w.aspects {
		x.Decided(w.ctx, &p.Pass)
	}
	w.actuator.act(p)
	w.engine.state = p.State
	return spent
}

// restore continues with the stored state, once.
func (e *engine) restore(now time.Time) {
	if e.stored != nil {
		e.state, e.stored = memory.Decode(e.stored, now), nil
	}
}

// resume returns the state for a decision, after a pause longer than most without what is valid only while a workload is
// observed.
func (e *engine) resume(now time.Time, most time.Duration) scale.State {
	if gap := now.Sub(e.state.DecidedAt); e.suspended || gap > most {
		e.state = memory.Resume(e.state, gap)
	}
	e.suspended = false
	return e.state
}

// maxPause is the longest time between two decisions for which a workload counts as
// observed without a gap.
func (s *shared) maxPause() time.Duration { return max(memory.MaxGap, 3*s.cfg.Tick) }

// isEarly reports whether the first replicas have served, or been observed, for less
// than maxAge, so that their first values may not have arrived yet.
func (s *seen) isEarly(d *scale.Decision, now time.Time, maxAge time.Duration) bool {
	if d.Serving == 0 {
		s.servingSince = time.Time{}
		return false
	}
	if s.servingSince.IsZero() {
		s.servingSince = now
	}
	return now.Sub(s.servingSince) < maxAge
}

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/aspect"
	"github.com/gpupilot/gpupilot/internal/autoscaler/memory"
	"github.com/gpupilot/gpupilot/internal/autoscaler/observe"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/history"
)

// pass is one pass: what it has found, decided and done. The status is written from it.
type pass struct {
	aspect.Pass
	before       scale.State // the decision
	plan         *plan       // nil: invalid
	obstacle     verdict
	podsProblem  string // why a signal cannot be scraped, if the spec or the pods' network is the reason
	unread       string // where a signal that has no value is read of the pods, and what was found there; empty: each has one
	queryProblem string // why a query has no new answer; empty: none has a problem
	noRequests   string // which query is 0/0; empty: none is
	serving      int32  // the target's serving pods, if no decision was made
	starting     int32
	early        bool // the first replica has just begun to serve, and its first values may be missing
	hpa          *v1alpha1.OwnedHPA
	pods         []*corev1.Pod // at the last decision
	requests     []float64     // requests/s of each signal; NaN: unknown
	parts        []aspect.Part // of the aspects, in their order

	contradictions []string // of exporters about the pods, see trust.Audit
}

// pass observes, decides and actuates once, and returns the duration of the decision.
func (w *workload) pass(now time.Time) (spent time.Duration) {
	a := w.object.Load()
	w.engine.restore(now)
	w.compile(a)
	r := &pass{Pass: aspect.Pass{Key: w.key, At: now, Object: a}, plan: w.plan.Load()}
	if r.plan != nil {
		r.Plan = &r.plan.Compiled
	}
	t, err := w.shared.deps.Scaler.Resolve(w.ctx, a.Namespace, a.Spec.ScaleTargetRef, false)
	if w.ctx.Err() != nil {
		return 0
	}
	if w.shared.deps.Programs.Note(err) == nil {
		r.Target = &t
		w.trackTarget(r)
	}
	w.actuator.follow(a)
	r.obstacle = w.findObstacle(a, &t, err)
	r.obstacle.message = excerpt.Of(r.obstacle.message, maxMessage) // it may quote names of any length
	if r.obstacle.reason != "" {
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
		spent = w.decide(r)
	}
	w.actuator.last, r.hpa = r.Decision, w.actuator.hpa.Status(a.Name)
	r.State, r.pods, r.parts = w.engine.state, w.seen.pods, []aspect.Part{w.actuator.part(r)}
	r.contradictions = w.shared.audit.Contradictions(r.pods)
	w.health.watch(r)
	w.report(r)
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
		return verdict{reasonInvalid, excerpt.Of(w.invalid.Error(), maxMessage-100) + "; the replicas stay until the spec is valid"}
	case errors.Is(err, target.ErrNotFound):
		return verdict{reasonNoTarget, excerpt.Of(err.Error(), maxMessage-100) + "; nothing is scaled: create it, or correct spec.scaleTargetRef"}
	case err != nil:
		return verdict{reasonUnreadable, err.Error()}
	}
	if rival, ok := w.shared.rivals.Of(a, t.Key, w.actuator.hpa.Owned()...); ok {
		return verdict{reasonOwned, t.String() + " is already scaled by " + rival.String() +
			", so this object does not scale it: delete one of the two, or set actuation: Advise to get decisions without scaling"}
	}
	return verdict{}
}

// report has the aspects report a pass, and records the Events that are due.
func (w *workload) report(r *pass) {
	r.Blocked, r.Places, r.Signals = r.blocked(), w.seen.routed, signalsCondition(r)
	for _, x := range w.aspects {
		part := x.Report(&r.Pass)
		for _, n := range part.Notices {
			w.record(r.Object, n.Kind, n.Reason, n.Action, n.Note)
		}
		r.parts = append(r.parts, part)
	}
	r.Units, r.Reader, r.Observation, r.Tokens, r.UpToDate = replica.Units{}, observe.Reader{}, scale.Observation{}, nil, nil // large
}

// decide makes the decision of a pass for a workload without an obstacle.
func (w *workload) decide(r *pass) (spent time.Duration) {
	began, now := time.Now(), r.At
	t, plan := r.Target, r.plan
	r.Units = replica.UnitsOf(w.shared.deps.Pods, w.key.Namespace, t.Selector)
	pods := r.Units.Pods
	w.updateRoutes(r.Units.All())
	pol := &r.Policy
	*pol = plan.Policy
	pol.GPUsPerReplica = w.shared.deps.Devices.PerReplica(w.key.Namespace, &t.Template, &r.Units)
	r.podsProblem = cmp.Or(w.podsProblem(plan, pods), (*w.shared.overFields.Load())[w.key])
	r.Reader = w.shared.readerAt(now, pol.MaxAge)
	r.Tokens = func(signal int) []history.Metric { return plan.metrics[signal].Tokens }
	r.UpToDate = func(ctx context.Context) bool { return w.actuator.isUpToDate(ctx, r) }
	obs := &r.Observation
	*obs = r.Reader.Observe(t.Replicas, &r.Units, plan.Sources)
	obs.Totals, r.queryProblem, r.noRequests = w.shared.totals(w.key, r.Object.Spec.Signals, plan)
	for _, x := range w.aspects {
		x.Prepare(&r.Pass)
	}
	r.before = w.engine.resume(now, 3*w.shared.cfg.Tick)
	d, after := scale.Decide(*pol, *obs, r.before, now)
	spent = time.Since(began)
	w.shared.meters.RecordDecision(&d, spent)
	r.State, r.Decision, r.requests = after, &d, requestRates(obs)
	r.early = w.seen.isEarly(&d, now, pol.MaxAge)
	for _, x := range w.aspects {
		x.Decided(w.ctx, &r.Pass)
	}
	w.actuator.act(r)
	w.engine.state = r.State
	return spent
}

// restore continues with the stored state, once.
func (e *engine) restore(now time.Time) {
	if e.stored != nil {
		e.state, e.stored = memory.Decode(e.stored, now), nil
	}
}

// resume returns the state for a decision. After a pause it lacks what is valid only while a workload is observed; a gap of
// some ticks is none.
func (e *engine) resume(now time.Time, ticks time.Duration) scale.State {
	if gap := now.Sub(e.state.DecidedAt); e.suspended || gap > max(memory.MaxGap, ticks) {
		e.state = memory.Resume(e.state, gap)
	}
	e.suspended = false
	return e.state
}

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

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/aspect"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/base/fair"
)

// The reasons of conditions about an owned HorizontalPodAutoscaler. They are public.
const (
	reasonHPAFailed  = "HPANotKept" // it cannot be created, changed or deleted
	reasonHPAWaits   = "HPAStopping"
	reasonHPANoValue = "HPAReadsNoMetric"
)

// followHPA finds out which HorizontalPodAutoscaler is the object's own.
func (w *workload) followHPA(a *v1alpha1.GPUAutoscaler) {
	leading := w.shared.deps.Leading()
	if w.hpa.Follow(a, leading); leading {
		w.shared.hpas.Find(w.ctx, a, &w.hpa)
	}
}

// actuateByHPA keeps the HorizontalPodAutoscaler, which reads the decision from the external metrics API: victims are marked
// before the decision is published.
func (w *workload) actuateByHPA(p *pass) {
	r := p.r
	d := r.decision
	within := target.RangeOf(&p.Policy, d.Replicas)
	if d.Idle.Down {
		within.Low = min(within.Low, d.Replicas) // also to 0
	}
	if !w.shared.hpas.IsKept(w.ctx, r.object, r.target, within, &w.hpa) {
		w.writeHPA(r, func(ctx context.Context) error {
			if !w.isUpToDate(ctx, r) {
				return nil
			}
			return w.shared.hpas.Keep(ctx, r.object, r.target, within, &w.hpa)
		})
	}
	switch {
	case d.Changes():
		ctx, cancel := context.WithTimeout(w.ctx, writeTimeout)
		w.markVictims(ctx, r.target, d.Victims, p.Units.Pods) // there are none but of a scale-down
		cancel()
		w.recordAdvice(r.target, d)
	case d.Replicas == w.advised:
		w.scaledAt, w.advised = r.at, -1
	}
	if w.hpa.Problem != "" && r.obstacle.reason == "" && (d.Changes() || d.Replicas > 0) {
		r.obstacle = verdict{reasonHPANoValue, w.hpa.Problem}
	}
}

// removeHPA deletes the HorizontalPodAutoscaler that the object owned, and reports whether the object may set replicas by
// itself. With atOnce it does not wait for the HPA controller.
func (w *workload) removeHPA(r *report, atOnce bool) (free bool) {
	if w.hpa.UID == "" || !w.shared.deps.Leading() {
		return w.hpa.UID == ""
	}
	waits := "the GPUAutoscaler was changed"
	ok := w.writeHPA(r, func(ctx context.Context) (err error) {
		if atOnce || w.isUpToDate(ctx, r) {
			waits, err = w.shared.hpas.Remove(ctx, r.object, &w.hpa, atOnce)
		}
		return err
	})
	if ok && waits != "" && r.obstacle.reason == "" {
		r.obstacle = verdict{reasonHPAWaits, waits}
	}
	return ok && waits == ""
}

// writeHPA makes requests about the HorizontalPodAutoscaler, and reports whether they succeeded.
func (w *workload) writeHPA(r *report, write func(context.Context) error) bool {
	was := r.obstacle
	if r.obstacle = (verdict{reasonHPAFailed, w.backoff.Message}); w.backoff.HasEnded(r.at) {
		ctx, cancel := context.WithTimeout(w.ctx, writeTimeout)
		defer cancel()
		done, err := w.shared.deps.Writes.Acquire(ctx, fair.Request{Payer: w.key.Namespace, Signal: true})
		if err == nil {
			defer done()
			err = write(ctx)
		}
		if err == nil {
			w.backoff, r.obstacle = aspect.Backoff{}, was
			return true
		}
		w.recordFailure(r, err)
		r.obstacle.reason = reasonHPAFailed
	}
	if was.reason != "" {
		r.obstacle = was
	}
	return false
}

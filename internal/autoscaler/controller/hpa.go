// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"

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

// actuateByHPA keeps the HorizontalPodAutoscaler, which reads the decision from the external metrics API: victims are marked
// before the decision is published.
func (x *actuator) actuateByHPA(r *pass) {
	d := r.Decision
	within := target.RangeOf(&r.Policy, d.Replicas)
	if d.Idle.Down {
		within.Low = min(within.Low, d.Replicas) // also to 0
	}
	if !x.shared.hpas.IsKept(x.ctx, r.Object, r.Target, within, &x.hpa) {
		x.writeHPA(r, func(ctx context.Context) error {
			if !x.isUpToDate(ctx, r) {
				return nil
			}
			return x.shared.hpas.Keep(ctx, r.Object, r.Target, within, &x.hpa)
		})
	}
	switch {
	case d.Changes():
		ctx, cancel := context.WithTimeout(x.ctx, writeTimeout)
		x.markVictims(ctx, r.Target, d.Victims, r.Units.Pods) // there are none but of a scale-down
		cancel()
		x.recordAdvice(r)
	case d.Replicas == x.advised:
		x.scaledAt, x.advised = r.At, -1
	}
	if x.hpa.Problem != "" && r.obstacle.reason == "" && (d.Changes() || d.Replicas > 0) {
		r.obstacle = verdict{reasonHPANoValue, x.hpa.Problem}
	}
}

// removeHPA deletes the HorizontalPodAutoscaler that the object owned, and reports whether the object may set replicas by
// itself. With atOnce it does not wait for the HPA controller.
func (x *actuator) removeHPA(r *pass, atOnce bool) (free bool) {
	if x.hpa.UID == "" || !x.shared.deps.Leading() {
		return x.hpa.UID == ""
	}
	waits := "the GPUAutoscaler was changed"
	ok := x.writeHPA(r, func(ctx context.Context) (err error) {
		if atOnce || x.isUpToDate(ctx, r) {
			waits, err = x.shared.hpas.Remove(ctx, r.Object, &x.hpa, atOnce)
		}
		return err
	})
	if ok && waits != "" && r.obstacle.reason == "" {
		r.obstacle = verdict{reasonHPAWaits, waits}
	}
	return ok && waits == ""
}

// writeHPA makes requests about the HorizontalPodAutoscaler, and reports whether they succeeded.
func (x *actuator) writeHPA(r *pass, write func(context.Context) error) bool {
	was := r.obstacle
	if r.obstacle = (verdict{reasonHPAFailed, x.backoff.Message}); x.backoff.HasEnded(r.At) {
		ctx, cancel := context.WithTimeout(x.ctx, writeTimeout)
		defer cancel()
		done, err := x.shared.deps.Writes.Acquire(ctx, fair.Request{Payer: x.key.Namespace, Signal: true})
		if err == nil {
			defer done()
			err = write(ctx)
		}
		if err == nil {
			x.backoff, r.obstacle = aspect.Backoff{}, was
			return true
		}
		x.recordFailure(r, err)
		r.obstacle.reason = reasonHPAFailed
	}
	if was.reason != "" {
		r.obstacle = was
	}
	return false
}

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/aspect"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// reasonRestored is the reason of the Event about replicas that a deleted GPUAutoscaler leaves.
const reasonRestored = "ReplicasRestored"

// restoreFor is how long the replicas of a deleted GPUAutoscaler are tried to be restored.
const restoreFor = time.Minute

// recordBefore records the replicas before this object sets them, once for each target. It
// reports whether they are stored, if spec.onDelete needs them: nothing is written before.
func (x *actuator) recordBefore(r *pass) bool {
	if r.plan.Actuation == v1alpha1.ActuationAdvise {
		x.before, x.mayRecord = nil, true
		return true
	}
	name, stored := r.Target.String(), r.Object.Status.ReplicasBefore
	switch {
	case x.before != nil && x.before.Target == name:
	case x.before == nil && !x.mayRecord && r.Object.Status.LastScaleTime != nil:
		return true // an earlier version has scaled it: what was before is not known
	default:
		x.before = &v1alpha1.ReplicasBefore{Target: name, Replicas: r.Target.Replicas}
	}
	x.mayRecord = false
	return r.Object.Spec.OnDelete != v1alpha1.OnDeleteRestore || stored != nil && *stored == *x.before
}

// restore sets the replicas of a deleted GPUAutoscaler's target to those before, if its
// spec.onDelete says so. There is no finalizer: a deletion never waits for the controller.
func (c *Controller) restore(ctx context.Context, a *v1alpha1.GPUAutoscaler, w *workload) {
	select {
	case <-w.ended: // it writes no more
	case <-ctx.Done():
		return
	}
	before := w.actuator.before
	if a.Spec.OnDelete != v1alpha1.OnDeleteRestore || before == nil || before.Replicas < 0 || !c.deps.Leading() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, restoreFor)
	defer cancel()
	var pause aspect.Backoff
	for {
		note, err := c.tryRestore(ctx, a, w, before)
		switch {
		case err == nil && note == "":
			return
		case err == nil:
			c.deps.Log.Info("restored", "gpuautoscaler", w.key.String(), "what", note)
			w.record(a, corev1.EventTypeNormal, reasonRestored, "Scale", note)
			return
		}
		pause.Extend(time.Now(), err.Error())
		select {
		case <-ctx.Done():
			c.deps.Log.Warn("cannot restore the replicas of a deleted object", "gpuautoscaler", w.key.String(), "err", err)
			return
		case <-time.After(time.Until(pause.Until)):
		}
		if !c.deps.Leading() {
			return
		}
	}
}

// tryRestore returns what it did; empty: there is nothing to do.
func (c *Controller) tryRestore(ctx context.Context, a *v1alpha1.GPUAutoscaler, w *workload, before *v1alpha1.ReplicasBefore) (note string, err error) {
	done, err := c.deps.Writes.Acquire(ctx, fair.Request{Payer: fair.Namespace(a.Namespace), Signal: true})
	if err != nil {
		return "", fmt.Errorf("wait for the API server: %w", err)
	}
	defer done()
	if w.actuator.hpa.UID != "" {
		if _, err := c.hpas.Remove(ctx, a, &w.actuator.hpa, true); err != nil {
			return "", err
		}
	}
	t, err := c.deps.Scaler.Resolve(ctx, a.Namespace, a.Spec.ScaleTargetRef, true)
	switch {
	case errors.Is(err, target.ErrNotFound):
		return "", nil
	case err != nil:
		return "", err
	case t.String() != before.Target || t.Replicas == before.Replicas || !w.actuator.leftBy(t.Replicas):
		return "", nil
	case len(c.rivals.Autoscalers(t.Key)) > 0:
		return "", nil // it has been created again
	}
	if _, ok := c.rivals.Of(a, t.Key, w.actuator.hpa.Owned()...); ok {
		return "", nil
	}
	from := t.Replicas
	if err := c.deps.Scaler.Write(ctx, &t, before.Replicas); err != nil {
		return "", err
	}
	return fmt.Sprintf("scaled %s from %d to %d, as before the GPUAutoscaler, which was deleted (onDelete: Restore)", &t, from, before.Replicas), nil
}

// leftBy reports whether the replicas are those that this object last set or left, so that
// nobody has set them since. Replicas that somebody has set to 0 stay 0.
func (x *actuator) leftBy(replicas int32) bool {
	d := x.last
	return d != nil && d.Rule != scale.RuleSetToZero && (replicas == d.Current || replicas == d.Replicas)
}

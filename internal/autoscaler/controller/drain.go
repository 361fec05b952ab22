// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/drain"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
)

// gatesLag is the time within which the cache shows the readiness gates that were written.
const gatesLag = 2 * time.Second

// prepareDrain adds what spec.drain needs to an observation. Decisions that are only
// advised take no replica out of the endpoints.
func (w *workload) prepareDrain(p *scale.Policy, o *scale.Observation, r *report, units *replica.Units) {
	if r.plan.Actuation == v1alpha1.ActuationAdvise {
		p.Drain = 0
	}
	if p.Drain == 0 {
		return
	}
	w.shared.budgets.Apply(o, w.key.Namespace, units)
	for i := range o.Pods {
		o.Pods[i].Ordinal -= r.target.First
	}
}

// drain closes the readiness gates of the replicas that are to leave, and opens those of
// replicas that are to serve again.
func (w *workload) drain(r *report, p *scale.Policy, o *scale.Observation, pods []*corev1.Pod, now time.Time) {
	d, failure := r.decision, ""
	if len(d.Leave) > 0 || slices.ContainsFunc(o.Pods, func(x scale.Replica) bool { return x.Phase == scale.Leaving }) {
		failure = w.writeGates(r, pods, now)
	}
	if p.Drain > 0 {
		c := drain.Condition(&drain.Case{Decision: d, Sources: r.plan.Sources, Template: r.target.Template.Pods, Pods: pods, Failure: failure})
		r.draining = &c
	}
}

// writeGates writes the readiness gates that differ from a decision. It returns the last
// error, for as long as writes fail.
func (w *workload) writeGates(r *report, pods []*corev1.Pod, now time.Time) (failure string) {
	if !w.shared.deps.Leading() {
		return ""
	}
	var claims []types.UID
	var closes, opens []*corev1.Pod
	for _, pod := range pods {
		phase, _ := replica.PhaseOf(pod)
		leave := phase != scale.Terminating && slices.Contains(r.decision.Leave, pod.Name) && replica.Gated(&pod.Spec)
		switch {
		case leave && phase != scale.Leaving:
			closes = append(closes, pod)
		case !leave && phase == scale.Leaving:
			opens = append(opens, pod)
		}
		if leave {
			claims = append(claims, pod.UID)
		}
	}
	w.shared.gates.Claim(claims, now)
	if len(closes)+len(opens) == 0 {
		w.gateBackoff = backoff{}
		return ""
	}
	if !w.gateBackoff.hasEnded(now) || now.Sub(w.gatesWritten) < gatesLag && w.gateBackoff.failures == 0 && len(opens) == 0 {
		return w.gateBackoff.message
	}
	ctx, cancel := context.WithTimeout(w.ctx, writeTimeout)
	defer cancel()
	done, err := w.shared.deps.Writes.Acquire(ctx, fair.Request{Payer: w.key.Namespace, Signal: true})
	if err != nil {
		return ""
	}
	defer done()
	if len(closes) > 0 && !w.isUpToDate(ctx, r) {
		closes = nil
	}
	w.gatesWritten = now
	if err := w.setGates(ctx, closes, opens); err != nil {
		if w.gateBackoff.failures == 0 {
			w.shared.deps.Log.Warn("cannot write a readiness gate", "gpuautoscaler", w.key.String(), "err", err)
		}
		w.gateBackoff.extend(now, err.Error())
		return w.gateBackoff.message
	}
	w.gateBackoff = backoff{}
	return ""
}

// setGates returns the last error. Gates are opened first: requests wait for those replicas.
func (w *workload) setGates(ctx context.Context, closes, opens []*corev1.Pod) (failed error) {
	slots := make(chan struct{}, maxParallelMarks)
	var all sync.WaitGroup
	var mu sync.Mutex
	for i, pod := range slices.Concat(opens, closes) {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			if err := w.shared.gates.Write(ctx, pod, i < len(opens)); err != nil {
				mu.Lock()
				failed = fmt.Errorf("pod %s: %w", pod.Name, err)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return failed
}

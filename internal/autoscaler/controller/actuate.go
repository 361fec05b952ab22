// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/aspect"
	"github.com/gpupilot/gpupilot/internal/autoscaler/meters"
	"github.com/gpupilot/gpupilot/internal/autoscaler/observe"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/scale"
)

const (
	// writeTimeout bounds all requests of one actuation together.
	writeTimeout = 5 * time.Second
	// maxWriteConflicts is how often a write is retried within one pass after a
	// conflict with another writer.
	maxWriteConflicts = 5
	// minEventInterval is the minimum time between two Events on changing advice, or
	// on an intermittent outage.
	minEventInterval = 30 * time.Second
)

// actuate writes the decision. If the target was changed meanwhile, it reads the
// target and decides again.
func (w *workload) actuate(p *pass) {
	r := p.r
	if !w.backoff.HasEnded(p.At) {
		r.obstacle = verdict{reasonScaleFailed, w.backoff.Message}
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, writeTimeout)
	defer cancel()
	done, err := w.shared.deps.Writes.Acquire(ctx, fair.Request{Payer: w.key.Namespace, Signal: true})
	if err != nil {
		w.recordFailure(r, fmt.Errorf("wait for the API server, which takes long for other requests of namespace %s: %w", w.key.Namespace, err))
		return
	}
	defer done()
	if !w.isUpToDate(ctx, r) {
		return
	}
	for range maxWriteConflicts {
		d := r.decision
		if !d.Changes() || !w.shared.deps.Leading() {
			return
		}
		if d.Replicas < d.Current {
			w.markVictims(ctx, r.target, d.Victims, p.Units.Pods)
		}
		err := w.shared.deps.Scaler.Write(ctx, r.target, d.Replicas)
		switch {
		case err == nil:
			w.recordScaled(r, observe.NewestReading(&p.Observation))
			return
		case !apierrors.IsConflict(err):
			w.recordFailure(r, err)
			return
		}
		w.shared.meters.RecordWrite(meters.Conflict)
		if !w.decideAgain(ctx, p) {
			return
		}
	}
}

// isUpToDate reports whether the API server still has the GPUAutoscaler that the
// decision is based on. A broken watch is retried after up to half a minute; until
// then the cache misses changes and deletions.
func (w *workload) isUpToDate(ctx context.Context, r *report) bool {
	current := &metav1.PartialObjectMetadata{} // the status may be malformed
	current.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("GPUAutoscaler"))
	err := w.shared.deps.Live.Get(ctx, w.key, current)
	switch {
	case err == nil && sameSpec(current, r.object) && current.DeletionTimestamp == nil:
		return true
	case err == nil, apierrors.IsNotFound(err):
		w.shared.meters.RecordWrite(meters.Outdated)
		w.shared.deps.Log.Debug("object changed or deleted, not scaling from the cached version", "gpuautoscaler", w.key.String())
	default:
		w.recordFailure(r, fmt.Errorf("read GPUAutoscaler %s: %w", w.key, err))
	}
	return false
}

// decideAgain reads the target again after a conflict, and decides again if its
// replicas changed. It reports whether the write should be retried.
func (w *workload) decideAgain(ctx context.Context, p *pass) bool {
	r := p.r
	t, err := w.shared.deps.Scaler.Resolve(ctx, w.key.Namespace, r.object.Spec.ScaleTargetRef, true)
	if err != nil {
		w.recordFailure(r, err)
		return false
	}
	r.target = &t
	if t.Replicas == p.Observation.Replicas {
		return true
	}
	p.Observation.Replicas = t.Replicas
	d, after := scale.Decide(p.Policy, p.Observation, p.before, p.At)
	w.state, r.decision = after, &d
	return true
}

// recordScaled counts, logs and records an Event for a decision that was written.
func (w *workload) recordScaled(r *report, measured time.Time) {
	now := time.Now()
	d, t := r.decision, r.target
	w.backoff = aspect.Backoff{}
	w.scaledAt = now
	w.shared.meters.RecordScale(now.Sub(measured), measured.IsZero(), now.Sub(r.at))
	w.mu.Lock()
	w.metered.RecordScale(d, now)
	w.mu.Unlock()
	sentence := d.Sentence()
	w.shared.deps.Log.Info("scaled", "gpuautoscaler", w.key.String(), "target", t.String(),
		"from", d.Current, "to", d.Replicas, "rule", d.Rule, "why", sentence)
	w.record(r.object, corev1.EventTypeNormal, string(d.Rule), "Scale",
		fmt.Sprintf("scaled %s from %d to %d: %s", t, d.Current, d.Replicas, sentence))
	w.shared.recent.Add(w.key, d, false)
}

// recordFailure counts and logs a failed write, and extends the backoff.
func (w *workload) recordFailure(r *report, err error) {
	if w.ctx.Err() != nil {
		return // shutting down
	}
	w.shared.meters.RecordWrite(meters.Failed)
	w.backoff.Extend(r.at, err.Error())
	r.obstacle = verdict{reasonScaleFailed, err.Error()}
	if w.backoff.Failures == 1 {
		w.shared.deps.Log.Warn("cannot scale", "gpuautoscaler", w.key.String(), "err", err)
	}
}

// recordAdvice records an Event for a decision that this controller does not write.
func (w *workload) recordAdvice(t *target.Target, d *scale.Decision) {
	if !w.shared.deps.Leading() || d.Replicas == w.advised || d.Time.Sub(w.advisedAt) < minEventInterval {
		return
	}
	w.advised, w.advisedAt = d.Replicas, d.Time
	does, advises := "would scale", w.plan.Load().Actuation == v1alpha1.ActuationAdvise
	if !advises {
		does = "asks its HorizontalPodAutoscaler to scale"
	}
	w.record(w.object.Load(), corev1.EventTypeNormal, string(d.Rule), "Advise",
		fmt.Sprintf("%s %s from %d to %d: %s", does, t, d.Current, d.Replicas, d.Sentence()))
	w.shared.recent.Add(w.key, d, advises)
}

// recordObstacle logs and records an Event once for each reason why a workload is
// not scaled.
func (w *workload) recordObstacle(r *report) {
	if r.obstacle.reason == "" {
		w.recordedObstacle = ""
		return
	}
	text := r.obstacle.reason + ": " + r.obstacle.message
	temporary := r.obstacle.reason == reasonUnreadable || r.obstacle.reason == reasonDeleting
	if text == w.recordedObstacle || temporary || !w.shared.deps.Leading() {
		return
	}
	w.recordedObstacle = text
	for _, c := range r.object.Status.Conditions {
		if c.Type == v1alpha1.ConditionAbleToScale && c.Reason == r.obstacle.reason && c.Message == excerpt.Of(r.obstacle.message, maxMessage) {
			return // the previous leader recorded it
		}
	}
	w.shared.deps.Log.Warn("not scaling", "gpuautoscaler", w.key.String(), "reason", r.obstacle.reason, "why", r.obstacle.message)
	w.record(r.object, corev1.EventTypeWarning, r.obstacle.reason, "Scale", r.obstacle.message)
}

func (w *workload) record(a *v1alpha1.GPUAutoscaler, kind, reason, action, note string) {
	w.shared.deps.Record(Event{
		About: corev1.ObjectReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "GPUAutoscaler",
			Namespace: a.Namespace, Name: a.Name, UID: a.UID, ResourceVersion: a.ResourceVersion,
		},
		Kind: kind, Reason: reason, Action: action, Note: note,
	})
}

// victimCost is the deletion cost of victims. A ReplicaSet deletes pods with a lower
// cost first, among pods in the same phase. Only this controller sets this value.
const victimCost = "-1073741824"

// maxParallelMarks bounds the parallel requests that mark victims, which others wait for
// if the API server is slow, and maxVictims the number of marked pods: the ReplicaSet's own
// order applies to the others.
const (
	maxParallelMarks = 2
	maxVictims       = 64
)

// markVictims sets the deletion cost of the pods to remove first. A pod that cannot
// be marked does not affect the others. Former victims that still run are unmarked.
func (w *workload) markVictims(ctx context.Context, t *target.Target, victims []string, pods []*corev1.Pod) {
	if t.Kind == "StatefulSet" {
		return // it always deletes the pods with the highest ordinals
	}
	if len(victims) > maxVictims {
		victims = victims[:maxVictims]
	}
	chosen := make(map[string]bool, len(victims))
	for _, name := range victims {
		chosen[name] = true
	}
	slots := make(chan struct{}, maxParallelMarks)
	var all sync.WaitGroup
	for _, pod := range pods {
		cost, hasCost := pod.Annotations[corev1.PodDeletionCost]
		ours := cost == victimCost
		if pod.DeletionTimestamp != nil || hasCost && !ours || ours == chosen[pod.Name] {
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			w.setDeletionCost(ctx, pod, chosen[pod.Name])
		})
	}
	all.Wait()
}

func (w *workload) setDeletionCost(ctx context.Context, pod *corev1.Pod, victim bool) {
	value := "null"
	if victim {
		value = `"` + victimCost + `"`
	}
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"annotations":{%q:%s}}}`, pod.UID, corev1.PodDeletionCost, value)
	named := &corev1.Pod{}
	named.Namespace, named.Name = pod.Namespace, pod.Name
	err := w.shared.deps.Client.Patch(ctx, named, client.RawPatch(types.MergePatchType, []byte(patch)))
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		w.shared.deps.Log.Debug("cannot mark a pod", "pod", pod.Name, "err", err)
	}
}

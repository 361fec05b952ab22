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
	"github.com/gpupilot/gpupilot/internal/scale"
)

const (
	// writeTimeout bounds all requests of one actuation together.
	writeTimeout = 5 * time.Second
	// conflicts is how often a write that others were ahead of is tried again
	// before the next pass.
	conflicts = 5
	// adviceGap is the least time between two Events of changing advice.
	adviceGap = 30 * time.Second
)

// attempt is what a decision was made from, should it have to be made again.
type attempt struct {
	policy scale.Policy
	obs    scale.Observation
	before scale.State
	pods   []*corev1.Pod
	now    time.Time
}

// actuate writes the decision. Where others changed the target meanwhile, it
// reads again and decides again.
func (w *workload) actuate(r *report, at *attempt) {
	if !w.pause.over(at.now) {
		r.able = verdict{reasonScaleFailed, w.pause.message}
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, writeTimeout)
	defer cancel()
	if !w.upToDate(ctx, r) {
		return
	}
	for range conflicts {
		d := r.decision
		if !d.Changes() || !w.shared.deps.Leading() {
			return
		}
		if d.Replicas < d.Current {
			w.markVictims(ctx, r.target, d.Victims, at.pods)
		}
		err := w.shared.targets.write(ctx, r.target, d.Replicas)
		switch {
		case err == nil:
			w.changed(r, newest(&at.obs))
			return
		case !apierrors.IsConflict(err):
			w.failed(r, err)
			return
		}
		w.shared.meters.writes.WithLabelValues("conflict").Inc()
		if !w.again(ctx, r, at) {
			return
		}
	}
}

// upToDate says whether the GPUAutoscaler is still the one that was decided by.
// A watch that broke is tried again after up to half a minute, and until then
// the cache does not know what was changed or deleted.
func (w *workload) upToDate(ctx context.Context, r *report) bool {
	is := &metav1.PartialObjectMetadata{} // its status may not decode
	is.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("GPUAutoscaler"))
	err := w.shared.deps.Live.Get(ctx, w.key, is)
	switch {
	case err == nil && sameSpec(is, r.object) && is.DeletionTimestamp == nil:
		return true
	case err == nil, apierrors.IsNotFound(err):
		w.shared.meters.writes.WithLabelValues("outdated").Inc()
		w.shared.deps.Log.Debug("changed or gone, not scaling by what is cached", "gpuautoscaler", w.key.String())
	default:
		w.failed(r, fmt.Errorf("read GPUAutoscaler %s: %w", w.key, err))
	}
	return false
}

// again reads the target anew after a conflict, and decides anew if its
// replicas are not what they were.
func (w *workload) again(ctx context.Context, r *report, at *attempt) bool {
	t, err := w.shared.targets.resolve(ctx, w.key.Namespace, r.object.Spec.ScaleTargetRef, true)
	if err != nil {
		w.failed(r, err)
		return false
	}
	r.target = &t
	if t.replicas == at.obs.Replicas {
		return true
	}
	at.obs.Replicas = t.replicas
	d, after := scale.Decide(at.policy, at.obs, at.before, at.now)
	w.state, r.decision = after, &d
	return true
}

// changed is for a decision that took effect.
func (w *workload) changed(r *report, measured time.Time) {
	now := time.Now()
	d, t := r.decision, r.target
	w.pause = backoff{}
	w.scaled = now
	w.shared.meters.scaled(now.Sub(measured), measured.IsZero(), now.Sub(r.at))
	sentence := d.Sentence()
	w.shared.deps.Log.Info("scaled", "gpuautoscaler", w.key.String(), "target", t.String(),
		"from", d.Current, "to", d.Replicas, "rule", d.Rule, "why", sentence)
	w.record(r.object, corev1.EventTypeNormal, string(d.Rule), "Scale",
		fmt.Sprintf("scaled %s from %d to %d: %s", t, d.Current, d.Replicas, sentence))
	w.shared.recent.add(w.key, d)
}

// failed is for a decision that the API server did not take.
func (w *workload) failed(r *report, err error) {
	if w.ctx.Err() != nil {
		return // we are ending
	}
	w.shared.meters.writes.WithLabelValues("error").Inc()
	w.pause.fail(r.at, err.Error())
	r.able = verdict{reasonScaleFailed, err.Error()}
	if w.pause.failures == 1 {
		w.shared.deps.Log.Warn("cannot scale", "gpuautoscaler", w.key.String(), "err", err)
	}
}

// advise tells of a decision that nobody carries out.
func (w *workload) advise(t *target, d *scale.Decision) {
	if !w.shared.deps.Leading() || d.Replicas == w.advised || d.Time.Sub(w.advice) < adviceGap {
		return
	}
	w.advised, w.advice = d.Replicas, d.Time
	w.record(w.object.Load(), corev1.EventTypeNormal, string(d.Rule), "Advise",
		fmt.Sprintf("would scale %s from %d to %d: %s", t, d.Current, d.Replicas, d.Sentence()))
	w.shared.recent.add(w.key, d)
}

// refuse tells once why a workload is not scaled.
func (w *workload) refuse(r *report) {
	if r.able.reason == "" {
		w.told = ""
		return
	}
	tell := r.able.reason + ": " + r.able.message
	passes := r.able.reason == reasonUnreadable || r.able.reason == reasonDeleting
	if tell == w.told || passes || !w.shared.deps.Leading() {
		return
	}
	w.told = tell
	for _, c := range r.object.Status.Conditions {
		if c.Type == v1alpha1.ConditionAbleToScale && c.Reason == r.able.reason && c.Message == clip(r.able.message, maxMessage) {
			return // it was told before we started
		}
	}
	w.shared.deps.Log.Warn("not scaling", "gpuautoscaler", w.key.String(), "reason", r.able.reason, "why", r.able.message)
	w.record(r.object, corev1.EventTypeWarning, r.able.reason, "Scale", r.able.message)
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

// The deletion cost of victims. A ReplicaSet takes pods with lower costs first
// (of those that are equally far in their lives); nobody else sets this one.
const victimCost = "-1073741824"

// victimsAtOnce bounds the requests that mark victims in parallel, and
// maxVictims how many are marked: beyond, the ReplicaSet's own order has to do.
const (
	victimsAtOnce = 8
	maxVictims    = 64
)

// markVictims tells the target's controller which pods to take, as well as
// that goes: a pod that cannot be marked does not keep the rest. Pods that were
// victims once and have lived are unmarked.
func (w *workload) markVictims(ctx context.Context, t *target, victims []string, pods []*corev1.Pod) {
	if t.kind == "StatefulSet" {
		return // takes its last pods, whatever they cost
	}
	if len(victims) > maxVictims {
		victims = victims[:maxVictims]
	}
	chosen := make(map[string]bool, len(victims))
	for _, name := range victims {
		chosen[name] = true
	}
	slots := make(chan struct{}, victimsAtOnce)
	var all sync.WaitGroup
	for _, pod := range pods {
		cost, priced := pod.Annotations[corev1.PodDeletionCost]
		ours := cost == victimCost
		if pod.DeletionTimestamp != nil || priced && !ours || ours == chosen[pod.Name] {
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			w.price(ctx, pod, chosen[pod.Name])
		})
	}
	all.Wait()
}

func (w *workload) price(ctx context.Context, pod *corev1.Pod, victim bool) {
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

// backoff is the pause after requests that failed: half a second, doubled with
// each failure in a row, up to 15 s.
type backoff struct {
	failures int
	until    time.Time
	message  string
}

func (b *backoff) fail(now time.Time, message string) {
	b.until = now.Add(min(500*time.Millisecond<<min(b.failures, 10), 15*time.Second))
	b.failures++
	b.message = message
}

func (b *backoff) over(now time.Time) bool { return !now.Before(b.until) }

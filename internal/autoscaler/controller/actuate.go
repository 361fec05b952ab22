// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
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

// actuator writes the decisions about one workload.
type actuator struct {
	*member
	published *published
	hpa       target.HPA
	scaledAt  time.Time                // when this controller last changed the replicas
	advised   int32                    // the replicas that were last advised; -1: none
	advisedAt time.Time                // when advised was recorded
	backoff   aspect.Backoff           // after failed writes
	uid       types.UID                // of the object that before is about
	before    *v1alpha1.ReplicasBefore // nil: not recorded, or not known
	mayRecord bool                     // it only advised before
	last      *scale.Decision          // nil: an obstacle prevented it
}

// follow takes over what the leader has recorded in the status of a, if this replica does not lead, or if a is another object
// than before.
func (x *actuator) follow(a *v1alpha1.GPUAutoscaler) {
	leading := x.shared.deps.Leading()
	if !leading || x.uid != a.UID {
		x.uid, x.before, x.mayRecord = a.UID, a.Status.ReplicasBefore, false
	}
	if x.hpa.Follow(a, leading); leading {
		x.shared.hpas.Find(x.ctx, a, &x.hpa)
	}
}

// act writes the decision of a pass as the spec says.
func (x *actuator) act(r *pass) {
	byHPA, leading := r.plan.Actuation == v1alpha1.ActuationHPA, x.shared.deps.Leading() && x.recordBefore(r)
	free := byHPA || x.removeHPA(r, false)
	switch {
	case byHPA && leading:
		x.actuateByHPA(r)
	case !r.Decision.Changes():
		x.advised = -1
	case r.plan.Actuation == v1alpha1.ActuationAdvise:
		x.recordAdvice(r)
	case leading && free && !byHPA:
		x.actuate(r)
	}
}

// part is what the status says of the writes.
func (x *actuator) part(r *pass) aspect.Part {
	scaledAt, before := x.scaledAt, x.before
	return aspect.Part{Status: func(st, _ *v1alpha1.GPUAutoscalerStatus) {
		if st.HPA, st.ReplicasBefore = r.hpa, before; !scaledAt.IsZero() {
			st.LastScaleTime = &metav1.Time{Time: scaledAt.Truncate(time.Second)}
		}
	}}
}

// actuate writes the decision. If the target was changed meanwhile, it reads the
// target and decides again.
func (x *actuator) actuate(r *pass) {
	if !x.backoff.HasEnded(r.At) {
		r.obstacle = verdict{reasonScaleFailed, x.backoff.Message}
		return
	}
	ctx, cancel := context.WithTimeout(x.ctx, writeTimeout)
	defer cancel()
	done, err := x.shared.deps.Writes.Acquire(ctx, fair.Request{Payer: fair.Namespace(x.key.Namespace), Signal: true})
	if err != nil {
		x.recordFailure(r, fmt.Errorf("wait for the API server, which takes long for other requests of namespace %s: %w", x.key.Namespace, err))
		return
	}
	defer done()
	if !x.isUpToDate(ctx, r) {
		return
	}
	for range maxWriteConflicts {
		d := r.Decision
		if !d.Changes() || !x.shared.deps.Leading() {
			return
		}
		if d.Replicas < d.Current {
			x.markVictims(ctx, r.Target, d.Victims, r.Units.Pods)
		}
		err := x.shared.deps.Scaler.Write(ctx, r.Target, d.Replicas)
		switch {
		case err == nil:
			x.recordScaled(r, observe.NewestReading(&r.Observation))
			return
		case !apierrors.IsConflict(err):
			x.recordFailure(r, err)
			return
		}
		x.shared.meters.RecordWrite(meters.Conflict)
		if !x.decideAgain(ctx, r) {
			return
		}
	}
}

// isUpToDate reports whether the API server still has the GPUAutoscaler that the
// decision is based on. A broken watch is retried after up to half a minute; until
// then the cache misses changes and deletions.
func (x *actuator) isUpToDate(ctx context.Context, r *pass) bool {
	current := &metav1.PartialObjectMetadata{} // the status may be malformed
	current.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("GPUAutoscaler"))
	err := x.shared.deps.Live.Get(ctx, x.key, current)
	switch {
	case err == nil && sameSpec(current, r.Object) && current.DeletionTimestamp == nil:
		return true
	case err == nil, apierrors.IsNotFound(err):
		x.shared.meters.RecordWrite(meters.Outdated)
		x.shared.deps.Log.Debug("object changed or deleted, not scaling from the cached version", "gpuautoscaler", x.key.String())
	default:
		x.recordFailure(r, fmt.Errorf("read GPUAutoscaler %s: %w", x.key, err))
	}
	return false
}

// decideAgain reads the target again after a conflict, and decides again if its
// replicas changed. It reports whether the write should be retried.
func (x *actuator) decideAgain(ctx context.Context, r *pass) bool {
	t, err := x.shared.deps.Scaler.Resolve(ctx, x.key.Namespace, r.Object.Spec.ScaleTargetRef, true)
	if err != nil {
		x.recordFailure(r, err)
		return false
	}
	r.Target = &t
	if t.Replicas == r.Observation.Replicas {
		return true
	}
	r.Observation.Replicas = t.Replicas
	d, after := scale.Decide(r.Policy, r.Observation, r.before, r.At)
	r.State, r.Decision = after, &d
	return true
}

// recordScaled counts, logs and records an Event for a decision that was written.
func (x *actuator) recordScaled(r *pass, measured time.Time) {
	now := time.Now()
	d, t := r.Decision, r.Target
	x.backoff = aspect.Backoff{}
	x.scaledAt = now
	x.shared.meters.RecordScale(now.Sub(measured), measured.IsZero(), now.Sub(r.At))
	x.published.mu.Lock()
	x.published.metered.RecordScale(d, now)
	x.published.mu.Unlock()
	sentence := d.Sentence()
	x.shared.deps.Log.Info("scaled", "gpuautoscaler", x.key.String(), "target", t.String(),
		"from", d.Current, "to", d.Replicas, "rule", d.Rule, "why", sentence)
	x.record(r.Object, corev1.EventTypeNormal, string(d.Rule), "Scale",
		fmt.Sprintf("scaled %s from %d to %d: %s", t, d.Current, d.Replicas, sentence))
	x.shared.recent.Add(x.key, d, false)
}

// recordFailure counts and logs a failed write, and extends the backoff.
func (x *actuator) recordFailure(r *pass, err error) {
	if x.ctx.Err() != nil {
		return // shutting down
	}
	x.shared.meters.RecordWrite(meters.Failed)
	x.backoff.Extend(r.At, err.Error())
	r.obstacle = verdict{reasonScaleFailed, err.Error()}
	if x.backoff.Failures == 1 {
		x.shared.deps.Log.Warn("cannot scale", "gpuautoscaler", x.key.String(), "err", err)
	}
}

// recordAdvice records an Event for a decision that this controller does not write.
func (x *actuator) recordAdvice(r *pass) {
	d := r.Decision
	if !x.shared.deps.Leading() || d.Replicas == x.advised || d.Time.Sub(x.advisedAt) < minEventInterval {
		return
	}
	x.advised, x.advisedAt = d.Replicas, d.Time
	does, advises := "would scale", r.plan.Actuation == v1alpha1.ActuationAdvise
	if !advises {
		does = "asks its HorizontalPodAutoscaler to scale"
	}
	x.record(r.Object, corev1.EventTypeNormal, string(d.Rule), "Advise",
		fmt.Sprintf("%s %s from %d to %d: %s", does, r.Target, d.Current, d.Replicas, d.Sentence()))
	x.shared.recent.Add(x.key, d, advises)
}

// victimCost is the deletion cost of victims. A ReplicaSet deletes pods with a lower
// cost first, among pods in the same phase. Only this controller sets this value.
const victimCost = "-1073741824"

// maxVictims bounds the number of marked pods: the ReplicaSet's own order applies to the
// others.
const maxVictims = 64

// markVictims sets the deletion cost of the pods to remove first. A pod that cannot
// be marked does not affect the others. Former victims that still run are unmarked.
func (x *actuator) markVictims(ctx context.Context, t *target.Target, victims []string, pods []*corev1.Pod) {
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
	var marks []*corev1.Pod
	for _, pod := range pods {
		cost, hasCost := pod.Annotations[corev1.PodDeletionCost]
		ours := cost == victimCost
		if pod.DeletionTimestamp == nil && (!hasCost || ours) && ours != chosen[pod.Name] {
			marks = append(marks, pod)
		}
	}
	// Those that are left out when ctx is done keep their marks.
	_ = x.shared.fleet.Patches.Each(ctx, fair.Request{Payer: fair.Namespace(x.key.Namespace), Signal: true}, len(marks), func(i int) {
		x.setDeletionCost(ctx, marks[i], chosen[marks[i].Name])
	})
}

func (x *actuator) setDeletionCost(ctx context.Context, pod *corev1.Pod, victim bool) {
	value := "null"
	if victim {
		value = `"` + victimCost + `"`
	}
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"annotations":{%q:%s}}}`, pod.UID, corev1.PodDeletionCost, value)
	named := &corev1.Pod{}
	named.Namespace, named.Name = pod.Namespace, pod.Name
	err := x.shared.deps.Client.Patch(ctx, named, client.RawPatch(types.MergePatchType, []byte(patch)))
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		x.shared.deps.Log.Debug("cannot mark a pod", "pod", pod.Name, "err", err)
	}
}

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
		done, err := x.shared.deps.Writes.Acquire(ctx, fair.Request{Payer: fair.Namespace(x.key.Namespace), Signal: true})
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

// SPDX-License-Identifier: Apache-2.0

package metricquery

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
)

// ConditionReady is True while the metric has a fresh value.
const ConditionReady = "Ready"

// The times between two writes of a status.
const (
	valueEvery  = 30 * time.Second // for a new value
	changeEvery = time.Second      // for a new condition
)

// statusWriter remembers what was written last.
type statusWriter struct {
	last v1alpha1.MetricQueryStatus
	at   time.Time // zero: nothing was written
}

// writeTimeout bounds the write of a status, without the wait for its turn.
const writeTimeout = 5 * time.Second

// dueStatus returns the status at now. It reports false if it is not to be written.
func (e *entry) dueStatus(now time.Time) (next v1alpha1.MetricQueryStatus, due bool) {
	a, v := e.answer(now)
	if v == notEvaluated || !e.k.deps.Leading() {
		return next, false
	}
	next, changed := e.nextStatus(&a, v, now)
	since := now.Sub(e.status.at)
	return next, !same(&next, &e.status.last) && since >= changeEvery && (changed || since >= valueEvery)
}

// writeStatus writes the status if it has changed and this replica leads.
func (e *entry) writeStatus(ctx context.Context) {
	if _, due := e.dueStatus(time.Now()); !due {
		return
	}
	done, err := e.k.deps.Writes.Acquire(ctx, fair.Request{Payer: fair.Namespace(e.object.Namespace)})
	if err != nil {
		return
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	now := time.Now() // it may have waited long
	next, due := e.dueStatus(now)
	if !due {
		return
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": e.object.UID}, "status": patchOf(&next)})
	if err != nil {
		return
	}
	// The answer to it has no spec: the whole object may be malformed.
	q := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: e.object.Namespace, Name: e.object.Name}}
	q.SetGroupVersionKind(kind().GroupVersionKind())
	err = e.k.deps.Client.SubResource("status").Patch(ctx, q, client.RawPatch(types.MergePatchType, body))
	e.status.at = now
	switch {
	case err == nil:
		e.status.last = next
	case client.IgnoreNotFound(err) != nil && ctx.Err() == nil:
		e.k.deps.Log.Warn("cannot write the status of a MetricQuery", "namespace", e.object.Namespace, "name", e.object.Name, "err", err)
	}
}

// nextStatus returns the status at now, and whether its condition has changed.
func (e *entry) nextStatus(a *queries.Answer, v verdict, now time.Time) (next v1alpha1.MetricQueryStatus, changed bool) {
	next = v1alpha1.MetricQueryStatus{MetricName: e.metric, ObservedGeneration: e.object.Generation}
	// A stored status may have any number of others, of any length.
	if c := meta.FindStatusCondition(e.status.last.Conditions, ConditionReady); c != nil {
		next.Conditions = []metav1.Condition{*c.DeepCopy()}
	}
	state := metav1.ConditionFalse
	if v.reason == ReasonValue {
		state = metav1.ConditionTrue
		next.Value, next.Time = quantityOf(a.Sample.Value), &metav1.Time{Time: a.Sample.At.Truncate(time.Second)}
	}
	changed = meta.SetStatusCondition(&next.Conditions, metav1.Condition{
		Type: ConditionReady, Status: state, Reason: v.reason, Message: v.message,
		ObservedGeneration: e.object.Generation, LastTransitionTime: metav1.Time{Time: now.Truncate(time.Second)},
	})
	return next, changed || next.MetricName != e.status.last.MetricName
}

// quantityOf returns v with at most three decimals, as the HPA computes.
func quantityOf(v float64) *resource.Quantity {
	if math.Abs(v) < 1e15 && v != math.Trunc(v) {
		return resource.NewMilliQuantity(int64(math.Round(v*1000)), resource.DecimalSI)
	}
	return resource.NewQuantity(int64(min(max(v, -math.MaxInt64), math.MaxInt64/2)), resource.DecimalSI)
}

// same reports whether two statuses have the same value and condition. The time alone
// is no change.
func same(a, b *v1alpha1.MetricQueryStatus) bool {
	x, y := meta.FindStatusCondition(a.Conditions, ConditionReady), meta.FindStatusCondition(b.Conditions, ConditionReady)
	return a.MetricName == b.MetricName && a.ObservedGeneration == b.ObservedGeneration &&
		(a.Value == nil) == (b.Value == nil) && (a.Value == nil || a.Value.Equal(*b.Value)) &&
		(x == nil) == (y == nil) && (x == nil || x.Status == y.Status && x.Reason == y.Reason && x.Message == y.Message)
}

// patchOf returns a merge patch of the status. A missing value is removed.
func patchOf(s *v1alpha1.MetricQueryStatus) map[string]any {
	patch := map[string]any{
		"metricName": s.MetricName, "observedGeneration": s.ObservedGeneration, "conditions": s.Conditions, "value": nil, "time": nil,
	}
	if s.Value != nil {
		patch["value"], patch["time"] = s.Value, s.Time
	}
	return patch
}

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/explain"
	"github.com/gpupilot/gpupilot/internal/autoscaler/memory"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/words"
)

// The reasons of conditions, and of the Events about them. They are public.
const (
	reasonInvalid     = "InvalidSpec"
	reasonNoTarget    = "TargetNotFound"
	reasonUnreadable  = "TargetUnreadable" // the API server did not answer
	reasonFault       = "ControllerFault"  // a pass ended with a panic
	reasonOwned       = "OwnedByAnother"
	reasonDeleting    = "BeingDeleted"
	reasonScaleFailed = "ScaleFailed"
	reasonAble        = "Able"
	reasonAdvising    = "Advising"
	reasonReadable    = "Readable"
	reasonNoFreshData = "NoFreshData"
	reasonNotServing  = "NothingServes"
	reasonUndecided   = "Undecided"
	reasonReady       = "Deciding"
	reasonConsistent  = "Consistent"
	reasonWasteful    = "DeviceUtilizationBesideRequests"

	reasonContradicted = "ExporterContradicted" // the API server has other owners of GPUs
	reasonUncontested  = "NoContradiction"
)

// The bounds of a status.
const (
	maxStatus   = 8 << 10 // bytes of JSON
	maxSteps    = 24
	maxMessage  = 1024 // bytes
	maxDetail   = 200  // bytes of a name or a reason
	maxSentence = 360  // bytes of a step's sentence
)

// The intervals between writes of a status.
const (
	minStatusInterval  = time.Second          // if only counts changed
	ruleStatusInterval = 5 * time.Second      // if only the rule or the number of readings changed
	maxStatusInterval  = memory.WriteInterval // if only values and messages changed
	statusRetry        = 2 * time.Second      // after a failed write
)

// statusWriter writes one GPUAutoscaler's status.
type statusWriter struct {
	w    *workload
	wake chan struct{}

	mu   sync.Mutex
	next *pass

	// The fields below are owned by run's goroutine.
	last    *v1alpha1.GPUAutoscalerStatus // as written last; nil: the object's own
	lastUID types.UID
	wrote   time.Time
}

func newStatusWriter(w *workload) *statusWriter {
	return &statusWriter{w: w, wake: make(chan struct{}, 1)}
}

// enqueue sets the report that is written next. It replaces one that is still waiting,
// and does not block.
func (s *statusWriter) enqueue(r *pass) {
	s.mu.Lock()
	s.next = r
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run writes the newest report when it is due.
func (s *statusWriter) run() {
	ctx := s.w.ctx
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		if wait := s.step(ctx); wait > 0 {
			timer.Reset(wait)
		}
	}
}

// step writes the newest report if it is due, and returns the time until there is more to do; not above 0: nothing. A panic
// costs this object its status for a while, and nobody else anything.
func (s *statusWriter) step(ctx context.Context) (wait time.Duration) {
	defer func() {
		if x := recover(); x != nil {
			wait = faultPause
			s.w.shared.meters.RecordFault()
			s.w.shared.deps.Log.Error("a status cannot be made: this is a fault of the controller", "gpuautoscaler", s.w.key.String(), "panic", x, "stack", string(debug.Stack()))
		}
	}()
	r := s.newest()
	if r == nil {
		return 0
	}
	if wait = s.delay(r, time.Now()); wait != 0 {
		return wait
	}
	done, err := s.w.shared.deps.Writes.Acquire(ctx, fair.Request{Payer: fair.Namespace(s.w.key.Namespace)})
	if err != nil {
		return 0 // ctx is done
	}
	defer done()
	return s.writeIfDue(ctx, s.newest(), time.Now()) // it may have waited long
}

// newest returns the report to write; nil: none.
func (s *statusWriter) newest() *pass {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

// base returns the status that was written before that of a report.
func (s *statusWriter) base(r *pass) *v1alpha1.GPUAutoscalerStatus {
	if s.last != nil && s.lastUID == r.Object.UID {
		return s.last
	}
	return &r.Object.Status
}

// delay returns the time until the status is due; negative: it is not to be written.
func (s *statusWriter) delay(r *pass, now time.Time) time.Duration {
	if !s.w.shared.deps.Leading() {
		s.last = nil
		return -1
	}
	base := s.base(r)
	return max(0, writeDelay(base, statusOf(r, base), now.Sub(s.wrote)))
}

// writeIfDue writes the status if it is due; else it returns the time until it is.
func (s *statusWriter) writeIfDue(ctx context.Context, r *pass, now time.Time) (wait time.Duration) {
	if wait := s.delay(r, now); wait != 0 {
		return wait
	}
	next := statusOf(r, s.base(r))
	if err := s.write(ctx, r.Object, next); err != nil {
		if ctx.Err() == nil && !apierrors.IsNotFound(err) {
			s.w.shared.deps.Log.Debug("status not written", "gpuautoscaler", s.w.key.String(), "err", err)
		}
		return statusRetry
	}
	s.last, s.lastUID, s.wrote = next, r.Object.UID, now
	return 0
}

// writeDelay returns how long the write of the next status may be delayed, given the
// time since the last write. A new number of replicas or a new condition is written
// at once, new counts soon, and new messages late.
func writeDelay(old, next *v1alpha1.GPUAutoscalerStatus, since time.Duration) time.Duration {
	a, b := *old, *next
	a.LastDecision, b.LastDecision, a.Memory, b.Memory, a.Objectives, b.Objectives, a.Signal, b.Signal = nil, nil, nil, nil, nil, nil, "", ""
	if equality.Semantic.DeepEqual(a, b) {
		if last, current := old.LastDecision, next.LastDecision; last != nil && current != nil && !haveSameReason(last, current) {
			return ruleStatusInterval - since
		}
		return maxStatusInterval - since
	}
	for _, s := range []*v1alpha1.GPUAutoscalerStatus{&a, &b} {
		s.CurrentReplicas, s.ServingReplicas, s.StartingReplicas, s.UnschedulableReplicas, s.DrainingReplicas = 0, 0, 0, 0, 0
		s.Startup, s.Pending = nil, nil
		s.Conditions = slices.Clone(s.Conditions)
		meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionScalingLimited) // it may change with each decision
	}
	if equality.Semantic.DeepEqual(a, b) {
		return minStatusInterval - since
	}
	return 0
}

// haveSameReason reports whether two decisions have the same reason and the same
// numbers of readings.
func haveSameReason(a, b *v1alpha1.DecisionStatus) bool {
	return a.Reason == b.Reason && slices.EqualFunc(a.Inputs, b.Inputs, func(x, y v1alpha1.InputStatus) bool {
		return x.Signal == y.Signal && x.Replicas == y.Replicas
	})
}

// write replaces the whole status, provided that the object still has this UID.
func (s *statusWriter) write(ctx context.Context, a *v1alpha1.GPUAutoscaler, st *v1alpha1.GPUAutoscalerStatus) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	patch, err := json.Marshal([]any{
		map[string]any{"op": "test", "path": "/metadata/uid", "value": a.UID},
		map[string]any{"op": "add", "path": "/status", "value": st},
	})
	if err != nil {
		return fmt.Errorf("encode a status: %w", err)
	}
	// The answer to it has no spec: the whole object may be malformed, and up to 1.5 MiB.
	named := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Name}}
	named.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("GPUAutoscaler"))
	return s.w.shared.deps.Client.Status().Patch(ctx, named, client.RawPatch(types.JSONPatchType, patch))
}

// verdict is the reason and message of a condition. An empty reason means no problem.
type verdict struct{ reason, message string }

// lasts reports whether an obstacle is there until somebody removes it: what was known of the
// target before does not count. An API server that does not answer is none.
func (v verdict) lasts() bool {
	return v.reason != "" && v.reason != reasonUnreadable && v.reason != reasonFault
}

// blocked reports whether an obstacle that lasts prevented the decision, and not only what follows from it.
func (r *pass) blocked() bool { return r.Decision == nil && r.obstacle.lasts() }

// statusOf returns the status for a report. Conditions that did not change keep their
// times from base.
func statusOf(r *pass, base *v1alpha1.GPUAutoscalerStatus) *v1alpha1.GPUAutoscalerStatus {
	if r.obstacle.reason == reasonFault { // nothing new is known
		st := base.DeepCopy()
		r.setConditions(st)
		return fit(st)
	}
	st := &v1alpha1.GPUAutoscalerStatus{
		ObservedGeneration: r.Object.Generation,
		Conditions:         slices.Clone(base.Conditions),
		LastDecision:       base.LastDecision,
		Mode:               modeOf(r.Object.Spec.Actuation),
		Memory:             memory.Of(&r.State, r.At),
	}
	r.setReplicas(st)
	r.setConditions(st)
	for _, p := range r.parts {
		if p.Status != nil {
			p.Status(st, base)
		}
	}
	return fit(st)
}

// setReplicas sets the numbers of replicas, and the decision.
func (r *pass) setReplicas(st *v1alpha1.GPUAutoscalerStatus) {
	if r.Target != nil {
		st.CurrentReplicas, st.ServingReplicas, st.StartingReplicas = r.Target.Replicas, r.serving, r.starting
	}
	if d := r.Decision; d != nil {
		st.CurrentReplicas, st.DesiredReplicas = d.Current, new(d.Replicas)
		st.ServingReplicas, st.StartingReplicas, st.UnschedulableReplicas = d.Serving, d.Starting, d.Unschedulable
		st.DrainingReplicas, st.LastDecision, st.Signal = d.Leaving, decisionOf(d), signalOf(d)
	}
}

// setConditions sets the conditions, and removes those of aspects that are not asked for. Behind an obstacle that lasts, none
// of an aspect's own is true any more.
func (r *pass) setConditions(st *v1alpha1.GPUAutoscalerStatus) {
	for _, p := range r.parts {
		if r.blocked() || p.Unasked {
			for _, name := range p.Owns {
				meta.RemoveStatusCondition(&st.Conditions, name)
			}
		}
	}
	for _, c := range conditionsOf(r) {
		last := meta.FindStatusCondition(st.Conditions, c.Type)
		if c.Reason == reasonNotServing && r.early && last != nil && last.ObservedGeneration == r.Object.Generation {
			continue // it stays until there is data for a new one
		}
		c.ObservedGeneration, c.LastTransitionTime = r.Object.Generation, metav1.Time{Time: r.At}
		meta.SetStatusCondition(&st.Conditions, c)
	}
}

// conditionsOf returns the conditions of a report.
func conditionsOf(r *pass) []metav1.Condition {
	able := metav1.Condition{Type: v1alpha1.ConditionAbleToScale, Status: metav1.ConditionTrue, Reason: reasonAble}
	switch {
	case r.obstacle.reason != "" && !r.obstacle.lasts():
		able.Status, able.Reason, able.Message = metav1.ConditionUnknown, r.obstacle.reason, excerpt.Of(r.obstacle.message, maxMessage)
	case r.obstacle.reason != "":
		able.Status, able.Reason, able.Message = metav1.ConditionFalse, r.obstacle.reason, excerpt.Of(r.obstacle.message, maxMessage)
	case r.plan != nil && r.plan.Actuation == v1alpha1.ActuationAdvise:
		able.Reason, able.Message = reasonAdvising, "decisions are reported and not written"
	case r.hpa != nil:
		able.Message = fmt.Sprintf("%s is scaled by HorizontalPodAutoscaler %s of this GPUAutoscaler", r.Target, r.hpa.Name)
	default:
		able.Message = r.Target.String() + " is scaled by this GPUAutoscaler"
	}
	signals := signalsCondition(r)
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: reasonReady, Message: "target found, signals readable"}
	for _, c := range []metav1.Condition{signals, able} {
		if c.Status != metav1.ConditionTrue {
			ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, c.Reason, c.Message
		}
	}
	all := []metav1.Condition{ready, able, signals, sourcesCondition(r), consistencyCondition(r)}
	for _, p := range slices.Backward(r.parts) {
		all = append(all, p.Conditions...)
	}
	return all
}

// sourcesCondition reports whether exporters contradict the API server about the
// workload's pods.
func sourcesCondition(r *pass) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionSources, Status: metav1.ConditionTrue, Reason: reasonUncontested,
		Message: "exporters and the API server agree on the pods' GPUs",
	}
	if n := len(r.contradictions); n > 0 {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonContradicted, r.contradictions[0]
		if n > 1 {
			c.Message += fmt.Sprintf(" (and %d more)", n-1)
		}
		c.Message = excerpt.Of("claims are ignored: "+c.Message, maxMessage)
	}
	return c
}

// consistencyCondition reports whether signals conflict with one another. It has no
// effect on Ready.
func consistencyCondition(r *pass) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionConsistent, Status: metav1.ConditionTrue, Reason: reasonConsistent,
		Message: "no signal is known to conflict with another",
	}
	if r.plan == nil {
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, reasonUndecided, "the spec is invalid"
		return c
	}
	if device, requests, found := r.plan.UtilizationBesideRequests(); found {
		c.Status, c.Reason = metav1.ConditionFalse, reasonWasteful
		c.Message = fmt.Sprintf("%s (device utilisation) and %s (requests) are both signals. The signal that asks for the most replicas wins, "+
			"and a server that batches requests keeps its GPU close to 100 %% busy at any load: %[1]s asks for far more GPUs than %[2]s needs. Remove %[1]s",
			excerpt.Of(device, maxDetail/2), excerpt.Of(requests, maxDetail/2))
	}
	return c
}

func signalsCondition(r *pass) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionSignals, Status: metav1.ConditionUnknown, Reason: reasonUndecided}
	d := r.Decision
	if d == nil {
		c.Message = "no signal was read"
		return c
	}
	missing := ""
	for _, in := range d.Inputs {
		if in.Fresh > 0 {
			c.Status = metav1.ConditionTrue
			continue
		}
		missing = in.Signal
	}
	switch {
	case c.Status == metav1.ConditionTrue && missing == "":
		c.Reason, c.Message = reasonReadable, explain.AllReadable+reasonSuffix(r.noRequests)
	case c.Status == metav1.ConditionTrue:
		c.Reason, c.Message = reasonReadable, "no fresh value of "+excerpt.Of(missing, maxDetail)+untilRead(r.plan, missing, false)+reasonSuffix(r.queryProblem)+reasonSuffix(r.podsProblem)+reasonSuffix(r.unread)
	case r.queryProblem != "":
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonNoFreshData, "no fresh value of "+excerpt.Of(missing, maxDetail)+untilRead(r.plan, missing, true)+reasonSuffix(r.queryProblem)
	case d.Serving == 0 && d.Idle.Down:
		c.Reason, c.Message = reasonNotServing, "no replica serves: nobody used them (spec.idle)"
	case d.Serving == 0:
		c.Reason, c.Message = reasonNotServing, "no replica serves yet, so the signals change nothing"
	case r.early && r.podsProblem == "":
		c.Reason, c.Message = reasonNotServing, "the first replica that serves has no value yet"
	default:
		c.Status, c.Reason = metav1.ConditionFalse, reasonNoFreshData
		c.Message = "no serving replica has a fresh value of " + excerpt.Of(missing, maxDetail) + untilRead(r.plan, missing, true) + reasonSuffix(r.podsProblem) + reasonSuffix(r.unread)
	}
	return c
}

// reasonSuffix returns a reason as the end of a sentence, if there is one.
func reasonSuffix(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + excerpt.Of(reason, 2*maxDetail)
}

// signalOf returns the value and the target of the deciding signal, or else of the first one.
func signalOf(d *scale.Decision) string {
	if len(d.Inputs) == 0 {
		return ""
	}
	in := &d.Inputs[max(0, slices.IndexFunc(d.Inputs, func(in scale.Input) bool { return in.Deciding }))]
	value := "?"
	if in.Fresh > 0 {
		value = words.Quantity(in.Value, "")
	}
	return excerpt.Of(value+"/"+words.Quantity(in.Target, in.Unit), maxDetail/2)
}

// decisionOf converts a decision to its form in a status.
func decisionOf(d *scale.Decision) *v1alpha1.DecisionStatus {
	out := &v1alpha1.DecisionStatus{
		Time: metav1.NewMicroTime(d.Time), Reason: string(d.Rule), Message: excerpt.Of(d.Sentence(), maxMessage),
	}
	for _, s := range d.Steps[:min(len(d.Steps), maxSteps)] {
		out.Steps = append(out.Steps, v1alpha1.StepStatus{
			Rule: string(s.Rule), Before: s.Before, After: s.After, Message: excerpt.Of(s.Sentence(), maxSentence),
		})
	}
	for _, in := range d.Inputs {
		i := v1alpha1.InputStatus{
			Signal: excerpt.Of(in.Signal, maxDetail/2), Unit: in.Unit, Target: number(in.Target),
			Replicas: in.Fresh, AgeMilliseconds: in.Age.Milliseconds(),
		}
		if in.Fresh > 0 {
			i.Value = number(in.Value)
		}
		i.Deciding = in.Deciding
		out.Inputs = append(out.Inputs, i)
	}
	return out
}

// fit shortens a status to maxStatus: it removes the last steps first, then the
// inputs, which the message contains too.
func fit(st *v1alpha1.GPUAutoscalerStatus) *v1alpha1.GPUAutoscalerStatus {
	size := func() int {
		b, err := json.Marshal(st)
		if err != nil {
			return math.MaxInt
		}
		return len(b)
	}
	for st.LastDecision != nil && size() > maxStatus {
		d := st.LastDecision
		switch {
		case len(d.Steps) > 0:
			d.Steps = d.Steps[:len(d.Steps)-1]
		case len(d.Inputs) > 0:
			d.Inputs = d.Inputs[:len(d.Inputs)-1]
		default:
			d.Message = excerpt.Of(d.Message, len(d.Message)/2)
			if len(d.Message) < 8 {
				st.LastDecision = nil
			}
		}
	}
	return st
}

// number writes a value with four significant digits.
func number(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return ""
	}
	if a := math.Abs(x); a != 0 && a < 1e15 {
		unit := math.Pow(10, math.Floor(math.Log10(a))-3)
		if unit < 1 {
			x = math.Round(x/unit) / math.Round(1/unit)
		} else {
			x = math.Round(x)
		}
	}
	return strconv.FormatFloat(x, 'f', -1, 64)
}

// modeOf returns who sets the replicas; empty: the spec names nobody that there is.
func modeOf(a v1alpha1.Actuation) string {
	switch a = cmp.Or(a, v1alpha1.ActuationScale); a {
	case v1alpha1.ActuationScale, v1alpha1.ActuationAdvise, v1alpha1.ActuationHPA:
		return string(a)
	}
	return ""
}

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
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
	"github.com/gpupilot/gpupilot/internal/scale"
)

// The reasons of conditions, and of the Events about them. They are public.
const (
	reasonInvalid     = "InvalidSpec"
	reasonNoTarget    = "TargetNotFound"
	reasonUnreadable  = "TargetUnreadable" // the API server did not answer
	reasonOwned       = "OwnedByAnother"
	reasonDeleting    = "BeingDeleted"
	reasonScaleFailed = "ScaleFailed"
	reasonAble        = "Able"
	reasonAdvising    = "Advising"
	reasonReadable    = "Readable"
	reasonUnread      = "NoFreshData"
	reasonNotServing  = "NothingServes"
	reasonUndecided   = "Undecided"
	reasonReady       = "Deciding"
	reasonConsistent  = "Consistent"
	reasonWasteful    = "DeviceUtilizationBesideRequests"

	reasonContradicted = "ExporterContradicted" // the API server says otherwise about who holds GPUs
	reasonUncontested  = "NoContradiction"
)

// The bounds of a status.
const (
	maxStatus  = 8 << 10 // bytes of JSON
	maxSteps   = 24
	maxMessage = 1024 // bytes
	maxStep    = 200  // bytes of a name or a reason
	maxSaid    = 360  // bytes of a step's sentence
)

// How often a status is written.
const (
	statusMin   = time.Second      // between two writes of counts
	statusRule  = 5 * time.Second  // between two writes of which only the rule or the number of readings differs
	statusMax   = 30 * time.Second // between two writes of reasons alone
	statusRetry = 2 * time.Second  // after one that failed
)

// statusWriter writes one GPUAutoscaler's status.
type statusWriter struct {
	w    *workload
	wake chan struct{}

	mu   sync.Mutex
	next *report

	// What follows belongs to run's goroutine.
	last    *v1alpha1.GPUAutoscalerStatus // as we wrote it; nil: what the object says
	lastUID types.UID
	wrote   time.Time
}

func newStatusWriter(w *workload) *statusWriter {
	return &statusWriter{w: w, wake: make(chan struct{}, 1)}
}

// offer hands over what there is to tell. It does not block.
func (s *statusWriter) offer(r *report) {
	s.mu.Lock()
	s.next = r
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run writes what is offered, when it is due.
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
		s.mu.Lock()
		r := s.next
		s.mu.Unlock()
		if r == nil {
			continue
		}
		if wait := s.step(ctx, r, time.Now()); wait > 0 {
			timer.Reset(wait)
		}
	}
}

// step writes the status if it is due; else it says when it will be.
func (s *statusWriter) step(ctx context.Context, r *report, now time.Time) (wait time.Duration) {
	if !s.w.shared.deps.Leading() {
		s.last = nil
		return 0
	}
	base := &r.object.Status
	if s.last != nil && s.lastUID == r.object.UID {
		base = s.last
	}
	next := statusOf(r, base)
	if wait := due(base, next, now.Sub(s.wrote)); wait > 0 {
		return wait
	}
	if err := s.write(ctx, r.object, next); err != nil {
		if ctx.Err() == nil && !apierrors.IsNotFound(err) {
			s.w.shared.deps.Log.Debug("status not written", "gpuautoscaler", s.w.key.String(), "err", err)
		}
		return statusRetry
	}
	s.last, s.lastUID, s.wrote = next, r.object.UID, now
	return 0
}

// due says how long the status may wait that was last written since ago: not
// at all if something was decided, a little if only counts moved, long if only
// the reasons are others.
func due(old, next *v1alpha1.GPUAutoscalerStatus, since time.Duration) time.Duration {
	a, b := *old, *next
	a.LastDecision, b.LastDecision, a.Memory, b.Memory = nil, nil, nil, nil
	if equality.Semantic.DeepEqual(a, b) {
		if was, is := old.LastDecision, next.LastDecision; was != nil && is != nil && !alike(was, is) {
			return statusRule - since
		}
		return statusMax - since
	}
	for _, s := range []*v1alpha1.GPUAutoscalerStatus{&a, &b} {
		s.CurrentReplicas, s.ServingReplicas, s.StartingReplicas, s.UnschedulableReplicas = 0, 0, 0, 0
		s.Startup, s.Pending = nil, nil
	}
	if equality.Semantic.DeepEqual(a, b) {
		return statusMin - since
	}
	return 0
}

// alike says whether two decisions have the same reason and as many readings.
func alike(a, b *v1alpha1.DecisionStatus) bool {
	return a.Reason == b.Reason && slices.EqualFunc(a.Inputs, b.Inputs, func(x, y v1alpha1.InputStatus) bool {
		return x.Signal == y.Signal && x.Replicas == y.Replicas
	})
}

// write replaces the status as a whole, of this very object only.
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
	named := autoscalerKind() // the answer has the whole object, which may not decode
	named.SetNamespace(a.Namespace)
	named.SetName(a.Name)
	return s.w.shared.deps.Client.Status().Patch(ctx, named, client.RawPatch(types.JSONPatchType, patch))
}

// statusOf tells a report. Times of conditions that did not change are base's.
func statusOf(r *report, base *v1alpha1.GPUAutoscalerStatus) *v1alpha1.GPUAutoscalerStatus {
	st := &v1alpha1.GPUAutoscalerStatus{
		ObservedGeneration: r.object.Generation,
		Startup:            r.learned,
		Conditions:         slices.Clone(base.Conditions),
		LastDecision:       base.LastDecision,
		Pending:            r.pending,
		Memory:             memoryOf(&r.state, r.at),
	}
	if !r.scaled.IsZero() {
		st.LastScaleTime = &metav1.Time{Time: r.scaled.Truncate(time.Second)}
	}
	if r.target != nil {
		st.CurrentReplicas, st.DesiredReplicas = r.target.replicas, r.target.replicas
		st.ServingReplicas, st.StartingReplicas = r.serving, r.starting
	}
	if d := r.decision; d != nil {
		st.CurrentReplicas, st.DesiredReplicas = d.Current, d.Replicas
		st.ServingReplicas, st.StartingReplicas, st.UnschedulableReplicas = d.Serving, d.Starting, d.Unschedulable
		st.LastDecision = decisionOf(d)
	}
	for _, c := range append(conditionsOf(r), windowOf(r, st.Conditions)...) {
		if c.Reason == reasonNotServing && r.early && judged(st.Conditions, &c, r.object.Generation) {
			continue
		}
		c.ObservedGeneration = r.object.Generation
		c.LastTransitionTime = metav1.Time{Time: r.at}
		meta.SetStatusCondition(&st.Conditions, c)
	}
	return fit(st)
}

// judged says whether there is a verdict of c's type on this generation, which
// is good until there is something to judge by.
func judged(all []metav1.Condition, c *metav1.Condition, generation int64) bool {
	last := meta.FindStatusCondition(all, c.Type)
	return last != nil && last.ObservedGeneration == generation
}

// conditionsOf judges a report.
func conditionsOf(r *report) []metav1.Condition {
	able := metav1.Condition{Type: v1alpha1.ConditionAbleToScale, Status: metav1.ConditionTrue, Reason: reasonAble}
	switch {
	case r.able.reason == reasonUnreadable:
		able.Status, able.Reason, able.Message = metav1.ConditionUnknown, r.able.reason, clip(r.able.message, maxMessage)
	case r.able.reason != "":
		able.Status, able.Reason, able.Message = metav1.ConditionFalse, r.able.reason, clip(r.able.message, maxMessage)
	case r.plan != nil && r.plan.Actuation == v1alpha1.ActuationAdvise:
		able.Reason, able.Message = reasonAdvising, "decisions are told and not carried out"
	default:
		able.Message = r.target.String() + " is ours to scale"
	}
	signals := signalsOf(r)
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: reasonReady, Message: "target found, signals readable"}
	for _, c := range []metav1.Condition{signals, able} {
		if c.Status != metav1.ConditionTrue {
			ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, c.Reason, c.Message
		}
	}
	return []metav1.Condition{ready, able, signals, sourcesOf(r), consistencyOf(r)}
}

// sourcesOf judges what exporters say about the workload's pods.
func sourcesOf(r *report) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionSources, Status: metav1.ConditionTrue, Reason: reasonUncontested,
		Message: "what exporters say about the pods' GPUs agrees with the API server",
	}
	if n := len(r.contradictions); n > 0 {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonContradicted, r.contradictions[0]
		if n > 1 {
			c.Message += fmt.Sprintf(" (and %d more)", n-1)
		}
		c.Message = clip("claims are ignored: "+c.Message, maxMessage)
	}
	return c
}

// consistencyOf judges the signals by one another. It has no effect on Ready.
func consistencyOf(r *report) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionConsistent, Status: metav1.ConditionTrue, Reason: reasonConsistent,
		Message: "no signal is known to work against another",
	}
	if r.plan == nil {
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, reasonUndecided, "the spec is invalid"
		return c
	}
	if device, requests, found := r.plan.DeviceBesideRequests(); found {
		c.Status, c.Reason = metav1.ConditionFalse, reasonWasteful
		c.Message = fmt.Sprintf("%s (device utilisation) and %s (requests) are both signals. The signal that asks for the most replicas wins, "+
			"and a server that batches requests keeps its GPU close to 100 %% busy at any load: %[1]s asks for far more GPUs than %[2]s needs. Remove %[1]s",
			clip(device, maxStep/2), clip(requests, maxStep/2))
	}
	return c
}

func signalsOf(r *report) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionSignals, Status: metav1.ConditionUnknown, Reason: reasonUndecided}
	d := r.decision
	if d == nil {
		c.Message = "nothing was read"
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
		c.Reason, c.Message = reasonReadable, "every signal can be read"
	case c.Status == metav1.ConditionTrue:
		c.Reason, c.Message = reasonReadable, "no fresh value of "+clip(missing, maxStep)+because(r.failed)
	case r.failed != "":
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonUnread, "no fresh value of "+clip(missing, maxStep)+because(r.failed)
	case d.Serving == 0:
		c.Reason, c.Message = reasonNotServing, "no replica serves yet"
	case r.early && r.unread == "":
		c.Reason, c.Message = reasonNotServing, "the first replica that serves has no value yet"
	default:
		c.Status, c.Reason = metav1.ConditionFalse, reasonUnread
		c.Message = fmt.Sprintf("no serving replica has a fresh value of %s", clip(missing, maxStep)) + because(r.unread)
	}
	return c
}

// because is a reason as the end of a sentence, if there is one.
func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + clip(reason, maxStep)
}

// decisionOf tells a decision in words.
func decisionOf(d *scale.Decision) *v1alpha1.DecisionStatus {
	out := &v1alpha1.DecisionStatus{
		Time: metav1.NewMicroTime(d.Time), Reason: string(d.Rule), Message: clip(d.Sentence(), maxMessage),
	}
	for _, s := range d.Steps[:min(len(d.Steps), maxSteps)] {
		out.Steps = append(out.Steps, v1alpha1.StepStatus{
			Rule: string(s.Rule), Before: s.Before, After: s.After, Message: clip(s.Sentence(), maxSaid),
		})
	}
	for _, in := range d.Inputs {
		i := v1alpha1.InputStatus{
			Signal: clip(in.Signal, maxStep/2), Unit: in.Unit, Target: number(in.Target),
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

// fit shortens a status to what is allowed: the steps go first, from the end,
// then the inputs, which the message tells too.
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
			d.Message = clip(d.Message, len(d.Message)/2)
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

// clip cuts s to at most n bytes, between runes, and shows that it did.
func clip(s string, n int) string {
	const ellipsis = "…"
	if len(s) <= n {
		return s
	}
	cut := max(n-len(ellipsis), 0)
	for cut > 0 && s[cut]&0xc0 == 0x80 {
		cut--
	}
	return s[:cut] + ellipsis
}

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/words"
)

// health says once what is wrong with the signals of a workload, or prevents its decisions: in Events and in the log.
type health struct {
	*member
	outage        outage
	guess         guess
	obstacle      string // in the last Event
	contradiction bool   // the Event about an exporter that contradicts the API server was recorded
	inconsistency bool   // the Event about conflicting signals was recorded
}

// watch follows a pass.
func (h *health) watch(r *pass) {
	r.unread = h.describeUnread(r)
	h.recordObstacle(r)
	h.watchSignals(r)
	h.watchSources(r)
	h.recordInconsistency(r)
}

// outage is a period in which replicas serve and no signal has a value.
type outage struct {
	ongoing   bool
	recorded  string    // the message of its last Event; empty: there was none
	lastEvent time.Time // when the last Event was recorded, also in an earlier outage
}

// recordObstacle logs and records an Event once for each reason why a workload is
// not scaled.
func (h *health) recordObstacle(r *pass) {
	if r.obstacle.reason == "" {
		h.obstacle = ""
		return
	}
	text := r.obstacle.reason + ": " + r.obstacle.message
	temporary := r.obstacle.reason != "" && !r.obstacle.lasts() || r.obstacle.reason == reasonDeleting
	if text == h.obstacle || temporary || !h.shared.deps.Leading() {
		return
	}
	h.obstacle = text
	for _, c := range r.Object.Status.Conditions {
		if c.Type == v1alpha1.ConditionAbleToScale && c.Reason == r.obstacle.reason && c.Message == excerpt.Of(r.obstacle.message, maxMessage) {
			return // the previous leader recorded it
		}
	}
	h.shared.deps.Log.Warn("not scaling", "gpuautoscaler", h.key.String(), "reason", r.obstacle.reason, "why", r.obstacle.message)
	h.record(r.Object, corev1.EventTypeWarning, r.obstacle.reason, "Scale", r.obstacle.message)
}

// watchSignals records that the workload's signals are unreadable, and why: again when the reason changes, and when
// this replica becomes the leader.
func (h *health) watchSignals(r *pass) {
	o, c := &h.outage, signalsCondition(r)
	if c.Reason != reasonNoFreshData {
		if o.ongoing && c.Reason == reasonReadable {
			h.shared.deps.Log.Info("signals readable again", "gpuautoscaler", h.key.String())
		}
		o.ongoing, o.recorded = false, ""
		return
	}
	if !o.ongoing {
		o.ongoing = true
		h.shared.deps.Log.Warn("signals unreadable", "gpuautoscaler", h.key.String(), "why", c.Message)
	}
	if c.Message == o.recorded || !h.shared.deps.Leading() || r.At.Sub(o.lastEvent) < minEventInterval {
		return
	}
	o.recorded, o.lastEvent = c.Message, r.At
	h.record(r.Object, corev1.EventTypeWarning, reasonNoFreshData, "Observe", c.Message)
}

// watchSources records once that an exporter contradicts the API server about the
// workload's pods.
func (h *health) watchSources(r *pass) {
	c := sourcesCondition(r)
	if c.Reason != reasonContradicted {
		h.contradiction = false
		return
	}
	if h.contradiction || !h.shared.deps.Leading() {
		return
	}
	h.contradiction = true
	if last := meta.FindStatusCondition(r.Object.Status.Conditions, c.Type); last != nil && last.Reason == c.Reason {
		return // the previous leader recorded it
	}
	h.record(r.Object, corev1.EventTypeWarning, c.Reason, "Observe", c.Message)
}

// recordContradiction records an Event about the pod of an exporter whose claim the API
// server contradicts.
func (c *Controller) recordContradiction(target, note string) {
	at := c.discovered.Load().Origins[target].Pod
	pod, ok := c.deps.Pods.Get(at.Namespace, at.Name)
	if !ok || !c.deps.Leading() {
		return
	}
	c.deps.Record(Event{
		About: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: at.Namespace, Name: at.Name, UID: pod.UID},
		Kind:  corev1.EventTypeWarning, Reason: reasonContradicted, Action: "Observe", Note: excerpt.Of(note, maxMessage),
	})
}

// untilRead says what happens while a signal has no value: by its fallback, else by missingData if none has one.
func untilRead(p *plan, signal string, none bool) string {
	if p == nil {
		return ""
	}
	for i := range p.Policy.Signals {
		s := &p.Policy.Signals[i]
		switch {
		case s.Name != signal:
		case s.Fallback.Mode == scale.FallbackIgnore:
			return ", which is ignored (fallback: Ignore)"
		case s.Fallback.Mode == scale.FallbackMax:
			return " (fallback: Max)"
		case s.Fallback.Mode == scale.FallbackReplicas:
			return fmt.Sprintf(" (fallback: %d replicas)", s.Fallback.Replicas)
		}
	}
	switch after := words.Duration(cmp.Or(p.Policy.MissingAfter, scale.DefaultMissingAfter)); {
	case !none:
		return ", so no replica is removed"
	case p.Policy.Missing == scale.MissingMax:
		return ", so the replicas go to maxReplicas after " + after + " (missingData: Max)"
	case p.Policy.Missing == scale.MissingFloor:
		return fmt.Sprintf(", so at least %d replicas run after %s (missingData)", p.Policy.MissingFloor, after)
	}
	return ", so the replicas stay as they are (missingData: Hold)"
}

// recordInconsistency logs and records one Event about conflicting signals.
func (h *health) recordInconsistency(r *pass) {
	if h.inconsistency || !h.shared.deps.Leading() {
		return
	}
	c := consistencyCondition(r)
	if c.Reason != reasonWasteful {
		return
	}
	h.inconsistency = true
	last := meta.FindStatusCondition(r.Object.Status.Conditions, c.Type)
	if last != nil && last.Reason == c.Reason && last.Message == c.Message {
		return // the previous leader recorded it
	}
	h.shared.deps.Log.Warn("signals conflict with one another", "gpuautoscaler", h.key.String(), "why", c.Message)
	h.record(r.Object, corev1.EventTypeWarning, c.Reason, "Observe", excerpt.Of(c.Message, maxMessage))
}

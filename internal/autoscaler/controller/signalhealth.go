// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
)

// health says once what is wrong with the signals of a workload, or prevents its decisions: in Events and in the log.
type health struct {
	*member
	outage        outage
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
	recorded  bool      // an Event was recorded, or none is needed
	lastEvent time.Time // when the last Event was recorded
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

// maxSilent bounds the number of silent targets in a message.
const maxSilent = 3

// watchSignals records once that the workload's signals became unreadable, and
// once that they are readable again.
func (h *health) watchSignals(r *pass) {
	o := &h.outage
	c := signalsCondition(r)
	if c.Reason != reasonNoFreshData {
		if o.ongoing && c.Reason == reasonReadable {
			h.shared.deps.Log.Info("signals readable again", "gpuautoscaler", h.key.String())
		}
		o.ongoing, o.recorded = false, false
		return
	}
	if o.ongoing && (o.recorded || !h.shared.deps.Leading()) {
		return
	}
	why := c.Message
	if r.queryProblem == "" && (r.unread == "" || r.plan.fields != (gpu.FieldSet{})) {
		why += ": " + h.describeSilence(r)
	}
	if !o.ongoing {
		o.ongoing = true
		h.shared.deps.Log.Warn("signals unreadable", "gpuautoscaler", h.key.String(), "why", why)
	}
	if !h.shared.deps.Leading() {
		return
	}
	o.recorded = true
	last := meta.FindStatusCondition(r.Object.Status.Conditions, c.Type)
	if last != nil && last.Reason == reasonNoFreshData || r.At.Sub(o.lastEvent) < minEventInterval {
		return // the previous leader recorded it, or the outage is intermittent
	}
	o.lastEvent = r.At
	h.record(r.Object, corev1.EventTypeWarning, reasonNoFreshData, "Observe", excerpt.Of(why, maxMessage))
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

// describeSilence lists the targets of the serving pods that do not answer, or whose
// values no longer change.
func (h *health) describeSilence(r *pass) string {
	want := r.samplePlaces()
	found := h.shared.discovered.Load()
	var out []string
	for _, t := range h.shared.deps.States() {
		at := found.Origins[t.Name]
		if _, ok := want[at.Place]; !ok {
			continue
		}
		want[at.Place] = true
		if t.Kind == discovery.KindPod {
			t.Name += " (" + at.Port.String() + ")"
		}
		if !t.Up {
			out = append(out, fmt.Sprintf("%s on node %s does not answer (%s)", t.Name, at.Node, cmp.Or(excerpt.Of(t.Error, maxDetail), "it never answered")))
		} else if t.Frozen > 0 {
			out = append(out, fmt.Sprintf("%s on node %s exposes values of %d devices that no longer change", t.Name, at.Node, t.Frozen))
		}
	}
	for place, found := range want {
		if !found {
			out = append(out, "no target is scraped at "+place)
		}
	}
	if len(out) == 0 {
		return "all targets answer, but have no samples of these pods"
	}
	slices.Sort(out)
	if more := len(out) - maxSilent; more > 0 {
		out = append(out[:maxSilent], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(out, ", ")
}

// describeUnread says of the first signal of pods without a value at which port of which
// container it is read, what was found there, and what to set; empty: each has a value, or
// another message has the reason.
func (h *health) describeUnread(r *pass) string {
	d, p := r.Decision, r.plan
	if d == nil || p == nil || d.Serving == 0 || r.early || r.podsProblem != "" {
		return ""
	}
	for i := range p.Sources {
		name := p.Policy.Signals[i].Name
		missing := func(in scale.Input) bool { return in.Signal == name && in.Fresh == 0 }
		if p.Sources[i].Kind == policy.Pods && slices.ContainsFunc(d.Inputs, missing) {
			return h.describeRead(r, &p.Sources[i])
		}
	}
	return ""
}

// describeRead says where a signal is read of a serving pod, and what was found there: of one
// that does not answer, if there is one.
func (h *health) describeRead(r *pass, src *policy.Source) (out string) {
	for _, pod := range r.pods {
		if !replica.Serving(pod) {
			continue
		}
		e, err := h.shared.finder.PodEndpoint(pod, src)
		if err != nil {
			continue
		}
		at := fmt.Sprintf("pod %s, %s, path %s", pod.Name, e.Port, excerpt.Of(e.URL.Path, maxDetail/4))
		if why := h.shared.targetError(e.Name); why != "" {
			if _, own, ok := strings.Cut(why, "): "); ok { // without the target and its URL
				why = own
			}
			if !strings.Contains(why, "set ") {
				why += "; set port or path in the signal if its metrics are elsewhere"
			}
			return at + ": " + why
		}
		if out == "" {
			out = at + ": the page has no fresh " + excerpt.Of(namesOf(src), maxDetail/2) + "; set port or path in the signal if another one has"
		}
	}
	return out
}

// namesOf lists the metrics of a source, the first name of each.
func namesOf(src *policy.Source) string {
	var names []string
	for _, term := range src.Terms {
		names = append(names, term[0].Name)
	}
	return strings.Join(names, " or ")
}

// samplePlaces returns the places whose targets should have samples of the serving
// pods.
func (r *pass) samplePlaces() map[string]bool {
	out := map[string]bool{}
	for _, pod := range r.pods {
		if phase, _ := replica.PhaseOf(pod); phase != scale.Serving || replica.Finished(pod) {
			continue
		}
		if r.plan.fields != (gpu.FieldSet{}) {
			out[discovery.NodePlace(pod.Spec.NodeName)] = false
		}
		if r.plan.scrapesPods {
			out[discovery.PodPlace(pod.Namespace, pod.Name)] = false
		}
	}
	return out
}

// fallbackSuffix says what happens while a signal has no value, if its spec does.
func fallbackSuffix(p *plan, signal string) string {
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
	return ""
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

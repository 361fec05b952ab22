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

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
)

// outage is a period in which replicas serve and no signal has a value.
type outage struct {
	ongoing   bool
	recorded  bool      // an Event was recorded, or none is needed
	lastEvent time.Time // when the last Event was recorded
}

// maxSilent bounds the number of silent targets in a message.
const maxSilent = 3

// watchSignals records once that the workload's signals became unreadable, and
// once that they are readable again.
func (w *workload) watchSignals(r *report) {
	o := &w.outage
	c := signalsCondition(r)
	if c.Reason != reasonNoFreshData {
		if o.ongoing && c.Reason == reasonReadable {
			w.shared.deps.Log.Info("signals readable again", "gpuautoscaler", w.key.String())
		}
		o.ongoing, o.recorded = false, false
		return
	}
	if o.ongoing && (o.recorded || !w.shared.deps.Leading()) {
		return
	}
	why := c.Message
	if r.queryProblem == "" && (r.unread == "" || r.plan.fields != (gpu.FieldSet{})) {
		why += ": " + w.describeSilence()
	}
	if !o.ongoing {
		o.ongoing = true
		w.shared.deps.Log.Warn("signals unreadable", "gpuautoscaler", w.key.String(), "why", why)
	}
	if !w.shared.deps.Leading() {
		return
	}
	o.recorded = true
	last := meta.FindStatusCondition(r.object.Status.Conditions, c.Type)
	if last != nil && last.Reason == reasonNoFreshData || r.at.Sub(o.lastEvent) < minEventInterval {
		return // the previous leader recorded it, or the outage is intermittent
	}
	o.lastEvent = r.at
	w.record(r.object, corev1.EventTypeWarning, reasonNoFreshData, "Observe", excerpt.Of(why, maxMessage))
}

// watchSources records once that an exporter contradicts the API server about the
// workload's pods.
func (w *workload) watchSources(r *report) {
	c := sourcesCondition(r)
	if c.Reason != reasonContradicted {
		w.contradictionRecorded = false
		return
	}
	if w.contradictionRecorded || !w.shared.deps.Leading() {
		return
	}
	w.contradictionRecorded = true
	if last := meta.FindStatusCondition(r.object.Status.Conditions, c.Type); last != nil && last.Reason == c.Reason {
		return // the previous leader recorded it
	}
	w.record(r.object, corev1.EventTypeWarning, c.Reason, "Observe", c.Message)
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
func (w *workload) describeSilence() string {
	want := w.samplePlaces()
	found := w.shared.discovered.Load()
	var out []string
	for _, t := range w.shared.deps.States() {
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
func (w *workload) describeUnread(r *report) string {
	d, p := r.decision, r.plan
	if d == nil || p == nil || d.Serving == 0 || r.early || r.podsProblem != "" {
		return ""
	}
	for i := range p.Sources {
		name := p.Policy.Signals[i].Name
		missing := func(in scale.Input) bool { return in.Signal == name && in.Fresh == 0 }
		if p.Sources[i].Kind == policy.Pods && slices.ContainsFunc(d.Inputs, missing) {
			return w.describeRead(&p.Sources[i])
		}
	}
	return ""
}

// describeRead says where a signal is read of a serving pod, and what was found there: of one
// that does not answer, if there is one.
func (w *workload) describeRead(src *policy.Source) (out string) {
	for _, pod := range w.pods {
		if !replica.Serving(pod) {
			continue
		}
		e, err := w.shared.finder.PodEndpoint(pod, src)
		if err != nil {
			continue
		}
		at := fmt.Sprintf("pod %s, %s, path %s", pod.Name, e.Port, excerpt.Of(e.URL.Path, maxDetail/4))
		if why := w.shared.targetError(e.Name); why != "" {
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
func (w *workload) samplePlaces() map[string]bool {
	out := map[string]bool{}
	for _, pod := range w.pods {
		if phase, _ := replica.PhaseOf(pod); phase != scale.Serving || replica.Finished(pod) {
			continue
		}
		if p := w.plan.Load(); p != nil && p.fields != (gpu.FieldSet{}) {
			out[discovery.NodePlace(pod.Spec.NodeName)] = false
		}
		if w.scrapesPods.Load() {
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
func (w *workload) recordInconsistency(r *report) {
	if w.inconsistencyRecorded || !w.shared.deps.Leading() {
		return
	}
	c := consistencyCondition(r)
	if c.Reason != reasonWasteful {
		return
	}
	w.inconsistencyRecorded = true
	last := meta.FindStatusCondition(r.object.Status.Conditions, c.Type)
	if last != nil && last.Reason == c.Reason && last.Message == c.Message {
		return // the previous leader recorded it
	}
	w.shared.deps.Log.Warn("signals conflict with one another", "gpuautoscaler", w.key.String(), "why", c.Message)
	w.record(r.object, corev1.EventTypeWarning, c.Reason, "Observe", excerpt.Of(c.Message, maxMessage))
}
